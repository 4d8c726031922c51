"""`opensled selftest`: one command for anybody with a GPU; writes what it measured, and prints what to paste."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from opensled.core.errors import INTERRUPTED
from opensled.core.files import write_whole
from opensled.models.hub_names import parse
from opensled.models.store import model_path
from opensled.process.work_progress import WorkProgress
from verify_server.engine.torch import loading
from verify_server.gpu_check import report
from verify_server.gpu_check.config import SelftestConfig
from verify_server.gpu_check.measurement import Measurement, Way
from verify_server.gpu_check.step_times import copy_bandwidth

# The first one is what a server does; against it stand one change each.
ON_A_GPU = (
    Way("auto", "auto", "auto"),
    Way("auto", "auto", "fast"),
    Way("auto", "off", "auto"),
    Way("sdpa", "off", "auto"),
)
# The same code in its slow form, which shows that it runs: no kernel of a GPU, and no graph.
ON_A_PROCESSOR = (Way("sdpa", "off", "auto"), Way("gather", "shapes", "fast"))
SHORT: dict[str, Any] = {"answers": 4, "rows": "1,2,4", "contexts": "64", "repeats": 2}


def selftest(config: SelftestConfig) -> int:
    """0 = everything that was tested holds. Raises UsageError, NotFound.

    Ctrl-C ends it with what is measured by then: the document says in "partial" how far it came.
    """
    chosen = replace(config, **(SHORT if config.short else {}))
    loading.use_threads(config.threads)
    document = measure(chosen)
    write_whole(Path(config.out), json.dumps(document, indent=1).encode() + b"\n")
    print(json.dumps(document) if config.json else report.text(document, config.out))
    if "partial" in document:
        return INTERRUPTED
    return 0 if report.holds(document) else 1


def measure(config: SelftestConfig) -> dict[str, Any]:
    """Everything, or what there is at Ctrl-C, as a document."""
    device = loading.pick_device(config.device)
    found = parse(config.model)
    path = config.model if found and not Path(config.model).exists() else str(model_path(config.model))
    document: dict[str, Any] = {
        "machine": report.machine(device),
        "model": config.model,
        "copy bytes/s": copy_bandwidth(device),
        "ways": [],
    }
    ways = ON_A_GPU if device.type == "cuda" else ON_A_PROCESSOR
    with WorkProgress("testing") as progress:
        try:
            Measurement(config, path, document, progress).run(ways)
        except KeyboardInterrupt:
            document["partial"] = f"{progress.parts} parts were measured before Ctrl-C"
    return document
