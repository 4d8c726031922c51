"""What `opensled selftest` measures, part by part, into a document that is complete or says how far it came."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from opensled.core.errors import OpenSledError
from opensled.process.work_progress import Part, WorkProgress
from verify_server.engine.torch import loading, torch_engine
from verify_server.engine.torch.torch_engine import TorchEngine
from verify_server.gpu_check import equality
from verify_server.gpu_check.config import SelftestConfig, numbers
from verify_server.gpu_check.step_times import step_times


class Way(NamedTuple):
    """One way to compute a target."""

    attention: str
    graphs: str
    numerics: str


LOAD: Part = ("load",)
REFERENCE: Part = ("load", "reference")
WRITTEN: Part = ("answer",)
JUDGED: Part = ("judged answer",)


class Measurement:
    """One run. `document`: everything that is measured so far."""

    def __init__(
        self, config: SelftestConfig, path: str, document: dict[str, Any], progress: WorkProgress
    ) -> None:
        """`path`: of the target."""
        self._config, self._path, self._document, self._progress = config, path, document, progress
        self._rows, self._contexts = numbers(config.rows), numbers(config.contexts)

    def run(self, ways: Sequence[Way]) -> None:
        """The first of `ways` is compared with the processor, too."""
        for place, way in enumerate(ways):
            self._try(way, is_first=place == 0, later=len(ways) - place - 1)
            gc.collect()  # the weights of one way leave the GPU before the next one's come

    def _try(self, way: Way, is_first: bool, later: int) -> None:
        """Measure one way, with `later` ones behind it; a way that fails is a result, too."""
        result: dict[str, Any] = way._asdict()
        self._document["ways"].append(result)
        compared = [REFERENCE, *self._config.answers * [WRITTEN, JUDGED]] if is_first else []
        self._progress.expect([LOAD, *compared, *self._steps(), *later * [LOAD, *self._steps()]])
        start = time.perf_counter()
        try:
            engine = torch_engine.load(self._path, self._config.device, self._config.dtype, **way._asdict())
            result["load s"] = time.perf_counter() - start
            result |= _facts(engine)
            self._contexts = tuple(each for each in self._contexts if each <= engine.info.context_length)
            self._progress.finish(LOAD)
            self._progress.expect([*compared, *self._steps(), *later * [LOAD, *self._steps()]])
            if is_first:
                self._compare(engine)
            self._time(engine, result)
        except OpenSledError as error:
            result["error"] = str(error)

    def _steps(self) -> list[Part]:
        return [("step", rows, context) for context in self._contexts for rows in self._rows]

    def _compare(self, engine: TorchEngine) -> None:
        """With the same weights in float32, or in float64 where the engine has that."""
        texts = []
        for text in equality.answers(engine, self._config.answers):
            texts.append(text)
            self._progress.finish(WRITTEN)
        dtype = engine.network.dtype
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        weights = loading.find_weights(self._path)
        reference = loading.load_network(weights, torch.device("cpu"), exact)
        self._progress.finish(REFERENCE)
        for found in equality.compare(texts, reference, dtype):
            self._document["equality"] = {**found._asdict(), "holds": found.holds}
            self._progress.finish(JUDGED)

    def _time(self, engine: TorchEngine, result: dict[str, Any]) -> None:
        steps = result["steps"] = list[dict[str, Any]]()
        bandwidth = self._document["copy bytes/s"]
        for step in step_times(engine, self._rows, self._contexts, self._config.repeats, bandwidth):
            steps.append(step._asdict())
            self._progress.finish(("step", step.rows, step.context))


def _facts(engine: TorchEngine) -> dict[str, Any]:
    info = engine.info
    return {
        "used": engine.way,
        "level": info.numerics,
        "dtype": info.dtype,
        "KV tokens": info.num_blocks * info.block_size,
        "KV bytes/token": engine.kv_bytes,
    }
