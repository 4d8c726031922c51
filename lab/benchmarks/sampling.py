"""What the target's tokens of a step cost: one sampling call for all sessions against one call for each session.

    python -m lab.benchmarks.sampling [--quick] [--seconds S] [--out FOLDER]

Both ways run in turns in one process, and each turn checks that they draw the same tokens. Kernel launches of the GPU
path are counted on the CPU, as tensor operations other than views.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lab.benchmarks.program import add_quick_and_out, folder_of, parser_of, write_json
from lab.testbed.provenance import SEED, provenance
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from tests.sampling_reference import numpy_tokens, torch_tokens
from verify_server.engine.base import SampleRequest
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.engine.torch.torch_scores import TorchScores

PARAMS = {
    "T=0": SamplingParams(temperature=0),
    "T=0.8": SamplingParams(temperature=0.8),
    "T=0.8, top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
}
SESSIONS, ROWS, VOCABULARIES = (1, 16, 64), (1, 5), (49_152, 151_936)
LAUNCH_VOCABULARY = 4096  # launches do not depend on it
MIN_TURNS = 3


class Cell(NamedTuple):
    """One step to sample."""

    library: str
    shape: str  # of the logits
    sessions: int
    rows: int  # of each session
    vocabulary: int
    params: str


def logits_of(shape: str, rows: int, vocabulary: int) -> np.ndarray:
    """float32 [rows, vocabulary]: `peaked` as models give them (40 likely ids over a long tail), or `flat`."""
    chance = np.random.default_rng(SEED)
    logits = chance.standard_normal((rows, vocabulary), np.float32)
    if shape == "peaked":
        logits *= 2.2
        for row in logits:
            row[chance.choice(vocabulary, 40, replace=False)] += np.linspace(16, 4, 40, dtype=np.float32)
    return logits


def requests_of(sessions: int, rows: int, params: SamplingParams) -> list[SampleRequest]:
    """What the sessions of a step ask for, each with noise and a position of its own."""
    return [
        SampleRequest(range(number * rows, (number + 1) * rows), params, noise_key(number), 100 + 7 * number)
        for number in range(sessions)
    ]


def contenders(cell: Cell) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The step sampled by one call for each session, and by one call."""
    logits = logits_of(cell.shape, cell.sessions * cell.rows, cell.vocabulary)
    requests = requests_of(cell.sessions, cell.rows, PARAMS[cell.params])
    if cell.library == "numpy":
        return lambda: numpy_tokens(logits, requests), lambda: NumpyScores(logits).sample(requests)
    tensor = torch.from_numpy(logits)
    return lambda: torch_tokens(tensor, requests), lambda: TorchScores(tensor).sample(requests)


def measure(cell: Cell, seconds: float, least: int) -> dict[str, Any]:
    """Milliseconds of both ways, in turns for at least so many seconds and turns; the first turn only warms up."""
    before, after = contenders(cell)
    assert before() == after(), f"the tokens differ: {cell}"
    samples: tuple[list[float], list[float]] = ([], [])
    started = time.perf_counter()
    while len(samples[0]) < least or time.perf_counter() - started < seconds:
        for run, found in zip((before, after), samples):
            begun = time.perf_counter()
            run()
            found.append(1e3 * (time.perf_counter() - begun))
    ratios = [old / new for old, new in zip(*samples)]
    return {
        **cell._asdict(),
        "turns": len(ratios),
        "before_ms": _summary(samples[0]),
        "after_ms": _summary(samples[1]),
        "speedup": _summary(ratios),
    }


def _summary(values: Sequence[float]) -> dict[str, float]:
    found = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


class Launches(TorchDispatchMode):
    """Counts tensor operations that compute or copy."""

    VIEWS = (
        *("view", "expand", "select", "slice", "unsqueeze"),
        *("squeeze", "detach", "lift_fresh", "alias", "empty"),
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        self.count += not name.startswith(self.VIEWS)
        return func(*args, **(kwargs or {}))


def launches(run: Callable[[], Any]) -> int:
    """Operations of one run."""
    with Launches() as counted:
        run()
    return counted.count


def launch_table() -> list[dict[str, Any]]:
    """Launches of a step before and after, for sessions of one kind and for a mixture of three kinds."""
    found = []
    for name, sessions in itertools.product((*PARAMS, "mixed"), SESSIONS):
        tensor = torch.from_numpy(logits_of("peaked", 5 * sessions, LAUNCH_VOCABULARY))
        kinds = list(PARAMS.values()) if name == "mixed" else [PARAMS[name]]
        requests = [
            request._replace(params=kinds[index % len(kinds)])
            for index, request in enumerate(requests_of(sessions, 5, kinds[0]))
        ]
        before = launches(lambda: torch_tokens(tensor, requests))  # noqa: B023
        after = launches(lambda: TorchScores(tensor).sample_groups(requests))  # noqa: B023
        found.append({"params": name, "sessions": sessions, "before": before, "after": after})
    return found


def table(document: dict[str, Any]) -> str:
    """For a terminal."""
    lines = [
        f"{'library':7} {'logits':7} {'sessions':>8} {'rows':>4} {'ids':>7} {'':17} {'before':>9} {'after':>9}"
    ]
    for cell in document["cells"]:
        before, after, speedup = (cell[name] for name in ("before_ms", "after_ms", "speedup"))
        lines.append(
            f"{cell['library']:7} {cell['shape']:7} {cell['sessions']:8} {cell['rows']:4} {cell['vocabulary']:7} "
            f"{cell['params']:17} {before['median']:6.4g} ms {after['median']:6.4g} ms {speedup['median']:6.2f}x "
            f"({speedup['lowest']:.2f} to {speedup['highest']:.2f})"
        )
    lines.append("launches of a step on a GPU, sessions of 5 rows")
    lines += [
        f"{each['params']:17} {each['sessions']:3} sessions: {each['before']:5} before, {each['after']:4} after"
        for each in document["launches"]
    ]
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    parser = parser_of("sampling", __doc__)
    add_quick_and_out(parser)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="least time of each cell; default %(default)s"
    )
    arguments = parser.parse_args(words)
    origin = provenance("python -m lab.benchmarks.sampling")
    axes = (("torch", "numpy"), ("peaked", "flat"), SESSIONS, ROWS, VOCABULARIES, PARAMS)
    # Of flat logits one row a session will do: sorting them row by row is what takes the time, before and after.
    cells = [cell for cell in itertools.starmap(Cell, itertools.product(*axes)) if cell[1:4:2] != ("flat", 5)]
    if arguments.quick:
        cells = [cell for cell in cells if cell[1:5] == ("peaked", 1, 1, VOCABULARIES[0])]
    seconds, least = (0.0, 1) if arguments.quick else (arguments.seconds, MIN_TURNS)
    document = {
        "figure": "sampling",
        "title": "Sampling the target's tokens of one step",
        "label": "real",
        "compared": "one call for each session (tests/sampling_reference.py) against one call for all of them; "
        "the tokens are equal",
        "threads": torch.get_num_threads(),
        "cells": [measure(cell, seconds, least) for cell in cells],
        "launches": launch_table(),
        "provenance": origin,
    }
    print(table(document))
    if out := folder_of(arguments):
        write_json(out / "sampling.json", document)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
