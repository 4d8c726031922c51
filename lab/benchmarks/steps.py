"""What a step of a real target costs: levels `exact` and `fast` against transformers' own forward, and sampling."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import DynamicCache, PreTrainedModel

from lab.benchmarks.figure import Comparison, Figure, in_turns
from lab.benchmarks.peer import GGUF
from lab.testbed.provenance import SEED
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.models.store import model_file
from verify_server.engine.base import SampleRequest, Segment
from verify_server.engine.torch import torch_engine
from verify_server.engine.torch.kv_memory import BLOCK_SIZE
from verify_server.engine.torch.selftest import attending_by
from verify_server.engine.torch.torch_engine import TorchEngine

MODEL = "smollm2"  # without the environment's GGUF
CONTEXT = 256  # tokens that each session has
CELLS = ((1, 1), (1, 5), (4, 5), (16, 1), (16, 5))  # sessions, rows of each
LEVELS = ("exact", "fast")
MAX_ROWS = max(sessions * rows for sessions, rows in CELLS)
ONE, PACKED, EXACT = 1.1, 1.3, 1.05  # the project's bars: times transformers' forward, and times level fast
PARAMS = {"greedy": SamplingParams(temperature=0), "T=0.8": SamplingParams(temperature=0.8)}


def measure(quick: bool) -> Figure:
    """The GGUF that the environment names, else SmolLM2 as `opensled pull smollm2` fetched it; raises NotFound."""
    torch.set_num_threads(1)
    cells = CELLS[:2] if quick else CELLS
    engines = {level: _load(level) for level in LEVELS}
    network = engines["fast"]._model.network
    samples: dict[str, list[float]] = {}
    for sessions, rows in cells:
        contenders: dict[str, Callable[[], float]] = {
            _name(sessions, rows, level): partial(
                _seconds, partial(engine.forward, _segments(sessions, rows))
            )
            for level, engine in engines.items()
        }
        contenders[_name(sessions, rows, "transformers")] = partial(
            _seconds, Plain(network, sessions * rows).forward
        )
        if (sessions, rows) == cells[-1]:
            contenders |= _sampling(engines["exact"], sessions, rows)
        samples |= in_turns(contenders, 2 if quick else 9)
    return Figure(
        title="Step of a real target",
        unit="ms",
        more_is_better=False,
        compared=(
            f"One step of {_model().stem} (engine torch, its GGUF dequantized), one thread, {CONTEXT} tokens of "
            "context for each session, logits of all rows: the engine against transformers' own forward of as many "
            "rows, as one sequence with one such context (DynamicCache, its SDPA): the same matrices, without the KV "
            "of the other sessions. Sampling is `Scores.sample` of all rows."
        ),
        loses=(
            "Always a little: 16 sessions attend to 16 contexts, and KV is gathered from blocks. Level `exact` pads to "
            "the multiples that the probe at load has found."
        ),
        samples={name: [1000 * value for value in values] for name, values in samples.items()},
        ratios=tuple(_ratios(cells)),
        facts={
            "model": _model().name,
            "dtype": engines["fast"].info.dtype,
            "geometry": str(engines["exact"]._model.geometry),
            "processor": torch.backends.cpu.get_cpu_capability(),
        },
    )


def _model() -> Path:
    return Path(os.environ.get(GGUF) or model_file(MODEL, "*.gguf"))


def _load(level: str) -> TorchEngine:
    kv_tokens = 16 * (CONTEXT + BLOCK_SIZE)
    return torch_engine.load(str(_model()), numerics=level, kv_tokens=kv_tokens, max_rows=MAX_ROWS)


def _name(sessions: int, rows: int, what: str) -> str:
    return f"{sessions} x {rows}, {what}"


def _segments(sessions: int, rows: int) -> list[Segment]:
    each = (CONTEXT + BLOCK_SIZE) // BLOCK_SIZE
    tokens = tuple(range(100, 100 + rows))
    return [
        Segment(tokens, CONTEXT, tuple(range(place * each, (place + 1) * each)), rows)
        for place in range(sessions)
    ]


def _sampling(engine: TorchEngine, sessions: int, rows: int) -> dict[str, Callable[[], float]]:
    """Sampling all rows of a step, by the parameters' name."""

    def sampled(params: SamplingParams) -> float:
        scores = engine.forward(_segments(sessions, rows))
        requests = [
            SampleRequest(range(rows * place, rows * (place + 1)), params, noise_key(place), CONTEXT)
            for place in range(sessions)
        ]
        return _seconds(partial(scores.sample, requests))

    return {
        _name(sessions, rows, f"sampling, {name}"): partial(sampled, params)
        for name, params in PARAMS.items()
    }


class Plain:
    """transformers' own forward of `rows` rows behind one context."""

    def __init__(self, network: PreTrainedModel, rows: int) -> None:
        self._network, self._rows = network, rows
        self._cache = DynamicCache(config=network.config)
        random = torch.Generator().manual_seed(SEED)
        self._context = torch.randint(20, 1000, (1, CONTEXT), generator=random)
        self._tokens = torch.randint(20, 1000, (1, rows), generator=random)
        self._compute(self._context)

    def forward(self) -> None:
        self._compute(self._tokens)
        self._cache.crop(-self._rows)

    @torch.inference_mode()
    def _compute(self, tokens: torch.Tensor) -> None:
        with attending_by(self._network, "sdpa"):
            self._network(input_ids=tokens, past_key_values=self._cache, use_cache=True)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _ratios(cells: Sequence[tuple[int, int]]) -> Iterator[Comparison]:
    for sessions, rows in cells:
        for level in LEVELS:
            bar = 1 / (ONE if sessions == 1 else PACKED)
            ours = _name(sessions, rows, level)
            yield Comparison(ours, ours, _name(sessions, rows, "transformers"), round(bar, 3))
        exact, fast = (_name(sessions, rows, level) for level in LEVELS)
        yield Comparison(f"{sessions} x {rows}, exact against fast", exact, fast, round(1 / EXACT, 3))
