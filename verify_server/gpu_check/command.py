"""`opensled selftest`: one command for anybody with a GPU; writes what it measured, and prints what to paste."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from opensled.errors import OpenSledError
from opensled.files import write_whole
from opensled.hub_names import parse
from opensled.store import model_path
from verify_server.engine import loading, torch_engine
from verify_server.engine.torch_engine import TorchEngine
from verify_server.gpu_check import equality, report
from verify_server.gpu_check.config import SelftestConfig, numbers
from verify_server.gpu_check.step_times import StepTime, TooMuchKV, copy_bandwidth, step_times


class Way(NamedTuple):
    """One way to compute a target."""

    attention: str
    graphs: str
    numerics: str


# The first one is what a server does; against it stand one change each.
ON_A_GPU = (
    Way("auto", "auto", "auto"),
    Way("auto", "auto", "fast"),
    Way("auto", "off", "auto"),
    Way("sdpa", "off", "auto"),
)
# The same code in its slow form, which shows that it runs: no kernel of a GPU, and no graph.
ON_A_PROCESSOR = (Way("sdpa", "off", "auto"), Way("gather", "shapes", "fast"))
SHORT = {"answers": 4, "rows": "1,2,4", "contexts": "64", "repeats": 2}


def selftest(config: SelftestConfig) -> int:
    """0 = everything that was tested holds. Raises UsageError, NotFound."""
    chosen = {**asdict(config), **(SHORT if config.short else {})}
    loading.use_threads(config.threads)
    document = measured(SelftestConfig(**chosen))
    write_whole(Path(config.out), json.dumps(document, indent=1).encode() + b"\n")
    print(json.dumps(document) if config.json else report.text(document, config.out))
    return 0 if report.holds(document) else 1


def measured(config: SelftestConfig) -> dict[str, Any]:
    """Everything, as a document."""
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
    for number, way in enumerate(ways):
        document["ways"].append(_tried(config, path, way, document, number == 0))
        gc.collect()  # the weights of one way leave the GPU before the next one's come
    return document


def _tried(
    config: SelftestConfig, path: str, way: Way, document: dict[str, Any], is_first: bool
) -> dict[str, Any]:
    """What one way gave; a way that fails is a result, too."""
    result: dict[str, Any] = way._asdict()
    start = time.perf_counter()
    try:
        engine = torch_engine.load(path, config.device, config.dtype, **way._asdict())
        result["load s"] = time.perf_counter() - start
        result |= _facts(engine)
        if is_first:
            document["equality"] = _equality(engine, path, config.answers)
        result["steps"] = list(_steps(engine, config, document["copy bytes/s"]))
    except OpenSledError as error:
        result["error"] = str(error)
    return result


def _facts(engine: TorchEngine) -> dict[str, Any]:
    info = engine.info
    return {
        "used": engine.way,
        "level": info.numerics,
        "dtype": info.dtype,
        "KV tokens": info.num_blocks * info.block_size,
        "KV bytes/token": engine.kv_bytes,
    }


def _steps(engine: TorchEngine, config: SelftestConfig, bandwidth: float) -> Iterator[dict[str, Any]]:
    timed = step_times(engine, numbers(config.rows), numbers(config.contexts), config.repeats, bandwidth)
    for step in timed:
        assert isinstance(step, StepTime | TooMuchKV)
        yield step._asdict()


def _equality(engine: TorchEngine, path: str, count: int) -> dict[str, Any]:
    """Against the same weights in float32, or in float64 where the engine has that."""
    texts = list(equality.answers(engine, count))
    dtype = engine.network.dtype
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    reference = loading.load_network(loading.find_weights(path), torch.device("cpu"), exact)
    found = equality.compare(iter(texts), reference, dtype)
    return {**found._asdict(), "holds": found.holds}
