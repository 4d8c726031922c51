"""What one core does by itself: a step of the real target behind each engine, and the draft models without a server.

    python -m lab.benchmarks.real_setups [--target smollm2] [--quick] [--out FOLDER]

Adds `setups` to real_prompts.json. They show whether the server that the drafts help is a fast one by itself.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from edge_client.drafters.base import Drafter
from edge_client.drafters.llamacpp import LlamaCppFactory
from lab.benchmarks.figure import in_turns
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, table
from lab.benchmarks.readme import write_readme
from lab.benchmarks.real_contenders import DISTILLED, SELF, SERVER_CORE, add_models, draft_models
from lab.benchmarks.real_document import read_measured, write
from lab.testbed.provenance import SEED, provenance
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler
from verify_server.engine.base import Segment, TargetEngine
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig

CONTEXT = 256  # tokens that are there before a step
ROWS = (1, 4, 8)
WRITTEN = 24  # tokens that a draft model writes
FIRST = 1000  # the first of the ids that are computed; they say nothing
SERVERS: Mapping[str, Mapping[str, Any]] = {
    "torch, float32, exact": {"engine": "torch", "dtype": "float32", "numerics": "exact"},
    "torch, float32, fast": {"engine": "torch", "dtype": "float32", "numerics": "fast"},
    "torch, bfloat16, exact": {"engine": "torch", "dtype": "bfloat16", "numerics": "exact"},
    "torch, bfloat16, fast": {"engine": "torch", "dtype": "bfloat16", "numerics": "fast"},
    "llamacpp": {"engine": "llamacpp"},
}


def main(words: list[str] | None = None) -> int:
    parser = parser_of("real_setups", __doc__)
    add_models(parser)
    parser.add_argument("--servers", default="; ".join(SERVERS), help="between semicolons; default all")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measure(arguments))


def _measure(arguments: Namespace) -> int:
    out = folder_of(arguments)
    raw = read_measured(out / "real_prompts.json") if out else {}
    os.sched_setaffinity(0, {SERVER_CORE})
    found = measured(arguments)
    for share in found["shares"]:
        wanted = f", at most {share['most']} wanted" if share["most"] else ""
        say(f"a token of the distilled draft: {share['share']:.2f} of {share['of']}{wanted}")
    print("\n".join(table(("what", "ms"), [(name, f"{ms:.1f}") for name, ms in _flat(found)])))
    if out:
        write(out / "real_prompts.json", {**raw, "setups": found})
        print(f"written: {out / 'real_prompts.json'} and {write_readme(out)}")
    return 0


def measured(arguments: Namespace) -> dict[str, Any]:
    """Medians of steps and of drafting, all in turns on one core."""
    origin = provenance()
    engines = {name.strip(): _engine(arguments.target, name.strip()) for name in arguments.servers.split(";")}
    drafts = draft_models(arguments.target, {"distilled": arguments.distilled})
    drafters = {name: LlamaCppFactory(str(path), 1).create() for name, path in drafts.items()}
    contenders: dict[str, Callable[[], float]] = {
        _step(name, rows): partial(_step_ms, engine, rows)
        for name, engine in engines.items()
        for rows in ROWS
    }
    contenders |= {name: partial(_token_ms, drafter) for name, drafter in drafters.items()}
    samples = in_turns(contenders, 2 if arguments.quick else 9)
    ms = {name: round(statistics.median(each), 2) for name, each in samples.items()}
    return {
        "target": arguments.target,
        "context": CONTEXT,
        "servers": {
            name: {
                "ms": {str(rows): ms[_step(name, rows)] for rows in ROWS},
                "numerics": engine.info.numerics,
            }
            for name, engine in engines.items()
        },
        "alone": {
            name: {"model": drafts[name].name, "ms": ms[name], "tokens_per_s": round(1000 / ms[name], 1)}
            for name in drafters
        },
        "shares": _shares(ms),
        "provenance": origin,
    }


def _shares(ms: Mapping[str, float]) -> list[dict[str, Any]]:
    """What a token of the distilled draft costs, as a share of what else there is; `most`: the project's own bar."""
    others = (
        (SELF, 0.5),
        (_step("torch, bfloat16, fast", 1), 0.15),
        (_step("torch, float32, exact", 1), None),
    )
    there = [(name, most) for name, most in others if {DISTILLED, name} <= ms.keys()]
    return [{"of": name, "share": round(ms[DISTILLED] / ms[name], 3), "most": most} for name, most in there]


def _flat(found: Mapping[str, Any]) -> Sequence[tuple[str, float]]:
    steps = [
        (_step(name, rows), ms) for name, each in found["servers"].items() for rows, ms in each["ms"].items()
    ]
    return [
        *steps,
        *((f"device alone: {name}, a token", each["ms"]) for name, each in found["alone"].items()),
    ]


def _step(name: str, rows: int | str) -> str:
    return f"{name}, {rows} rows"


def _engine(target: str, name: str) -> TargetEngine:
    say(f"loading {name}")
    config = ServeConfig(model=target, threads=1, device="cpu", kv_tokens=4096, **SERVERS[name])
    engine: TargetEngine = ENGINES.get(config.engine)(config).engine
    engine.forward([Segment(_ids(CONTEXT), 0, _blocks(engine), rows=1)])
    return engine


def _ids(count: int) -> tuple[int, ...]:
    return tuple(range(FIRST, FIRST + count))


def _blocks(engine: TargetEngine) -> tuple[int, ...]:
    """Of the only sequence: the same ones each time, for the pool is new."""
    blocks = BlockTable(BlockPool(engine.info.num_blocks, engine.info.block_size))
    blocks.grow(CONTEXT + max(ROWS))
    return tuple(blocks.blocks)


def _step_ms(engine: TargetEngine, rows: int) -> float:
    segment = Segment(_ids(rows), CONTEXT, _blocks(engine), rows=rows)
    started = time.perf_counter()
    engine.forward([segment])
    return 1000 * (time.perf_counter() - started)


def _token_ms(drafter: Drafter) -> float:
    """One of those that follow the reading of a prompt."""
    drafter.begin(_ids(CONTEXT), Sampler(SamplingParams(temperature=0), noise_key(SEED)))
    written = drafter.propose()
    next(written)
    started = time.perf_counter()
    count = sum(1 for _ in islice(written, WRITTEN))
    return 1000 * (time.perf_counter() - started) / count


if __name__ == "__main__":
    sys.exit(main())
