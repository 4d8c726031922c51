"""`opensled selftest`: whether a target on this machine's GPU writes what its weights say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from opensled.core.errors import INTERRUPTED
from opensled.models.hub_names import parse
from opensled.models.store import model_path
from opensled.process.work_progress import WorkProgress
from verify_server.engine.torch import loading, torch_engine
from verify_server.gpu_check import equality
from verify_server.gpu_check.config import SelftestConfig

# Parts of the work
LOADED, WRITTEN, JUDGED = "load", "answer", "judged answer"


def selftest(config: SelftestConfig) -> int:
    """Exit code: 0 where every answer is the processor's, 1 where one is not. Raises UsageError, NotFound.

    Ctrl-C prints what was judged by then, marked as partial.
    """
    loading.use_threads(config.threads)
    document: dict[str, Any] = {"model": config.model}
    try:
        parts = [LOADED, LOADED, *config.answers * [WRITTEN, JUDGED]]
        with WorkProgress("testing", parts) as progress:
            _judge(config, document, progress)
    except KeyboardInterrupt:
        document["partial"] = True
    print(json.dumps(document) if config.json else text(document))
    return INTERRUPTED if "partial" in document else int(not document["holds"])


def _judge(config: SelftestConfig, document: dict[str, Any], progress: WorkProgress) -> None:
    """Compare answers of the engine with the same weights in float32, or in float64 where the engine has that."""
    found = parse(config.model)
    path = config.model if found and not Path(config.model).exists() else str(model_path(config.model))
    engine = torch_engine.load(path, config.device, config.dtype)
    progress.finish(LOADED)
    device = engine.network.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a processor"
    document |= {
        "device": name,
        "level": engine.info.numerics,
        "dtype": engine.info.dtype,
        "used": engine.way,
    }
    texts = []
    for written in equality.answers(engine, config.answers):
        texts.append(written)
        progress.finish(WRITTEN)
    dtype = engine.network.dtype
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    reference = loading.load_network(loading.find_weights(path), torch.device("cpu"), exact)
    progress.finish(LOADED)
    for judged in equality.compare(texts, reference, dtype):
        document |= {**judged._asdict(), "holds": judged.holds}
        progress.finish(JUDGED)


def text(document: dict[str, Any]) -> str:
    """Two lines for a person: the target, and its verdict."""
    target = f"{document['model']} on {document.get('device', 'no device yet')}"
    facts = "".join(f", {document[name]}" for name in ("used", "dtype") if name in document)
    if "holds" not in document:
        return f"{target}{facts}\nstopped before an answer was judged"
    verdict = "holds" if document["holds"] else "FAILS"
    partial = ", PARTIAL: stopped by Ctrl-C" if "partial" in document else ""
    return (
        f"{target}{facts}, level {document['level']}\n"
        f"equality with the processor {verdict}: {document['answers']} answers, {document['tokens']:,} tokens, "
        f"{document['flips']} near ties (at most {document['worst']:.3f} of the logits' spread, allowed "
        f"{document['allowed']:.3f}), {document['wrong']} wrong{partial}"
    )
