"""The best tokens of the whole batch against a length for each session, on the same drafts.

    python -m lab.benchmarks.batch_budget [--regimes R,...] [--sessions N,...] [--pair NAME | --acceptance A]
                                      [--real N] [--quick] [--out FOLDER]

Every session always has a draft of eight tokens, so the target is all that counts: tokens committed per second of its
steps. Three ways to choose what a step verifies: one length for all, the best of LENGTHS at that place; a length for
each session, by its running acceptance; and the likeliest tokens of the batch by their confidences. Simulated, steps
take what a profile says. With --real, steps of N sessions are computed by a real engine on this machine, one of each
way after the other, and their costs are learned as a server learns them. Ratios are paired by seed, with a 95 %
interval. Writes batch_budget.json.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

from lab.benchmarks.batch_budget_run import (
    Choice,
    EngineTarget,
    LawTarget,
    Run,
    Target,
    one_length,
    worth_most,
)
from lab.benchmarks.drafts_option import add_drafts, drafts_of
from lab.benchmarks.grid_place import SERVERS
from lab.benchmarks.program import (
    add_quick_and_out,
    exit_code,
    folder_of,
    names_of,
    parser_of,
    say,
    table,
    write_json,
)
from lab.testbed.emulation.step_law import StepLaw
from lab.testbed.load.interval import interval
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of
from lab.testbed.provenance import provenance
from lab.testbed.recordings import DEFAULT_PAIR, PAIRS
from lab.testbed.traces import TraceSet
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig

LENGTHS = (0, 1, 2, 3, 4, 6, 8)
EACH, BATCH = "a length per session", "the batch's likeliest"
WAYS: dict[str, Choice] = {EACH: worth_most(False), BATCH: worth_most(True)}
SEEDS, STEPS, REAL_STEPS = 5, 200, 60
TURN = 5  # steps of one way before the next one has its turn
REAL_LENGTHS = (0, 2, 4)
HEAD = ("target", "sessions", "one length", "tokens/s", EACH, BATCH, "the batch over each", "over one length")

Runs = Mapping[str, Sequence[Run]]  # by way: one for each seed


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of("batch_budget", __doc__)
    parser.add_argument("--regimes", default="dense-1k,moe,hub", help="default %(default)s")
    parser.add_argument("--sessions", default="8,16,32,64", help="default %(default)s")
    parser.add_argument("--real", type=int, default=0, help="sessions of a real engine; 0 = simulated only")
    add_drafts(parser, DEFAULT_PAIR)
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: measure(arguments, words if words is not None else sys.argv[1:]))


def measure(arguments: Namespace, words: Sequence[str]) -> int:
    """All places, shown and written."""
    origin = provenance("python -m lab.benchmarks.batch_budget " + " ".join(words))
    source, quick = drafts_of(arguments), arguments.quick
    traces = traces_of(source)
    regimes = names_of(arguments.regimes, SERVERS)
    sessions = [int(count) for count in arguments.sessions.split(",")]
    if quick:
        regimes, sessions = regimes[:1], sessions[:1]
    places = [simulated(regime, count, traces, quick) for regime, count in product(regimes, sessions)]
    if arguments.real:
        with _one_core():
            places.append(real(source, arguments.real, traces, quick))
    print("\n".join(table(HEAD, [_row(place) for place in places])))
    if folder := folder_of(arguments):
        label = "simulated / real" if arguments.real else "simulated"
        facts = {"figure": "batch_budget", "title": "One budget for the whole batch", "label": label}
        facts["drafts"] = source.words
        write_json(folder / "batch_budget.json", {**facts, "places": places, "provenance": origin})
    return 0


@contextmanager
def _one_core() -> Iterator[None]:
    """For this process, and for the threads that an engine makes meanwhile."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def simulated(regime: str, sessions: int, traces: TraceSet, quick: bool = False) -> dict[str, Any]:
    """One place by the profiles."""
    law = StepLaw.of(SERVERS[regime])
    seeds, steps = (2, 20) if quick else (SEEDS, STEPS)

    def made(choice: Choice, seed: int) -> Run:
        return _stepped(Run(choice, LawTarget(law), traces, sessions, seed), steps)

    best = max(LENGTHS, key=lambda length: made(one_length(length), 0).rate)
    ways = {f"length {best}": one_length(best), **WAYS}
    found = {name: [made(choice, seed) for seed in range(seeds)] for name, choice in ways.items()}
    return _place("simulated", regime, sessions, best, found)


def real(source: RecordedDrafts, sessions: int, traces: TraceSet, quick: bool = False) -> dict[str, Any]:
    """Steps of the pair's target on one core of this machine; the best of REAL_LENGTHS is known afterwards."""
    ways = {f"length {length}": one_length(length) for length in REAL_LENGTHS} | WAYS
    longest = max(len(item.prompt_ids) + len(item.target_ids) for item in traces.items) + max(LENGTHS)
    target = _made_target(source, sessions, longest, len(ways))
    seeds, steps = (2, 4) if quick else (SEEDS, REAL_STEPS)
    found: dict[str, list[Run]] = {name: [] for name in ways}
    for seed in range(seeds):
        runs = {
            name: Run(choice, target(number), traces, sessions, seed)
            for number, (name, choice) in enumerate(ways.items())
        }
        for _ in range(-(-steps // TURN)):
            for run in runs.values():
                _stepped(run, TURN)
        for name, run in runs.items():
            found[name].append(run)
        say(f"real, {sessions} sessions, seed {seed}: " + _told(runs))
    best = max(REAL_LENGTHS, key=lambda length: sum(run.rate for run in found[f"length {length}"]))
    kept = {f"length {best}": found[f"length {best}"], **{name: found[name] for name in WAYS}}
    return _place("real", PAIRS[source.pair].target, sessions, best, kept)


def _made_target(source: RecordedDrafts, sessions: int, longest: int, ways: int) -> Callable[[int], Target]:
    """On one engine, which has one core; each way has KV of its own."""
    config = ServeConfig(
        model=PAIRS[source.pair].target, engine="torch", kv_tokens=ways * sessions * (longest + 32)
    )
    engine = ENGINES.get("torch")(config).engine
    blocks = -(-longest // engine.info.block_size)
    return lambda number: EngineTarget(engine, number * sessions * blocks, blocks)


def _stepped(run: Run, steps: int) -> Run:
    for _ in range(steps):
        run.step()
    return run


def _told(runs: Mapping[str, Run]) -> str:
    return ", ".join(f"{name} {run.rate:.1f}" for name, run in runs.items())


def _place(label: str, target: str, sessions: int, length: int, found: Runs) -> dict[str, Any]:
    """What is written of a place; the rates of the ways are means over the seeds."""
    one = f"length {length}"
    place: dict[str, Any] = {
        "label": label,
        "target": target,
        "sessions": sessions,
        "length": length,
        "tokens_per_s": {name: [round(run.rate, 2) for run in runs] for name, runs in found.items()},
        "rows_per_step": {
            name: round(sum(run.rows for run in runs) / sum(run.steps for run in runs), 2)
            for name, runs in found.items()
        },
        "over each": _ratio(found[BATCH], found[EACH]),
        "over one length": _ratio(found[BATCH], found[one]),
    }
    say(f"{label}, {target}, {sessions} sessions: the batch's likeliest x {place['over each'][0]:.3f}")
    return place


def _ratio(ours: Sequence[Run], others: Sequence[Run]) -> list[float]:
    """Mean and 95 % interval of the ratios, seed by seed."""
    found = interval([one.rate / other.rate for one, other in zip(ours, others)])
    return [round(value, 4) for value in found]


def _row(place: Mapping[str, Any]) -> tuple[str, ...]:
    rates = [f"{sum(values) / len(values):.1f}" for values in place["tokens_per_s"].values()]
    ratios = [
        f"{mean:.3f} ({low:.3f} to {high:.3f})"
        for mean, low, high in (place["over each"], place["over one length"])
    ]
    where = f"{place['target']}, {place['label']}"
    return (where, str(place["sessions"]), str(place["length"]), *rates, *ratios)


if __name__ == "__main__":
    sys.exit(main())
