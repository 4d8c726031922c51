"""What drafts bring to 1, 2, 4 and 8 users of one server: the target is real, the devices are emulated.

    python -m lab.benchmarks.real_users [--target smollm2] [--users 1,2,4,8] [--quick] [--out FOLDER]

Two cores cannot run eight devices. So one process on core 1 plays them (real_fleet.py), in the time that the real draft
model takes on this machine, measured first. The server on core 0 computes everything. Its set-up is torch at level
exact, for texts have to be those of the recording (python -m lab.testbed.emulation.recorder --target smollm2).
Adds `users` to real_prompts.json; a run for one number of users keeps the others.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from edge_client.drafters.llamacpp import LlamaCppFactory
from hw_profiles.profiles import DraftSpeed, Quantity
from lab.benchmarks.program import FOLDER, add_quick_and_out, exit_code, folder_of, parser_of, table
from lab.benchmarks.readme import write_readme
from lab.benchmarks.real_contenders import DEVICE_CORE, SERVER_CORE, add_models, draft_models, serve
from lab.benchmarks.real_document import read_measured, write
from lab.benchmarks.real_fleet import COUNTED, RealFleet
from lab.testbed.provenance import SEED, provenance
from lab.testbed.traces import PACKAGED
from opensled.core.errors import UsageError
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler

SETUP = "torch"
READ, WRITTEN = 256, 48  # tokens by which the speed of the draft model is measured
USERS = "1,2,4,8"


def main(words: list[str] | None = None) -> int:
    parser = parser_of("real_users", __doc__)
    add_models(parser)
    parser.add_argument(
        "--recordings", type=Path, default=PACKAGED, help="folder with them; default %(default)s"
    )
    parser.add_argument("--users", help=f"default {USERS}, with --quick 2")
    parser.add_argument("--max-tokens", type=int, default=48, help="of an answer; default %(default)s")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measure(arguments))


def _measure(arguments: Namespace) -> int:
    out = folder_of(arguments)
    raw = read_measured(out / "real_prompts.json") if out else {}
    numbers = [int(each) for each in (arguments.users or ("2" if arguments.quick else USERS)).split(",")]
    fleet = RealFleet.of(arguments.recordings, arguments.target, arguments.max_tokens)
    about = {"setup": SETUP, "provenance": provenance()}
    with ExitStack() as stack:
        server = serve(stack, arguments.target, SETUP, {SERVER_CORE})
        os.sched_setaffinity(0, {DEVICE_CORE})
        speed = measured_speed(arguments)
        rows = [asyncio.run(fleet.row(server, users, speed)) | about for users in numbers]
    told = [[str(row["users"]), f"{row['no drafts, tokens/s']:.1f}", str(row["ratios"])] for row in rows]
    print("\n".join(table(("users", "no drafts, tokens/s of all", "ratios"), told)))
    if out:
        _write(arguments, raw, rows, speed, fleet.draft_model)
    return 0


def _write(
    arguments: Namespace,
    raw: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    speed: DraftSpeed,
    recorded: str,
) -> None:
    """`recorded`: the model whose drafts are replayed."""
    out = folder_of(arguments) or FOLDER
    fresh = {row["users"] for row in rows}
    kept = [row for row in raw.get("users", {}).get("rows", []) if row["users"] not in fresh]
    users = {
        "label": "real target, emulated devices",
        "compared": (
            f"Real target, emulated devices. One server ({arguments.target}, set-up {SETUP}, one thread on core "
            f"{SERVER_CORE}) computes everything; so many devices replay the drafts recorded with it ({recorded}), "
            f"from core {DEVICE_CORE}, at the speed measured of {speed.size} there "
            f"({speed.decode_per_s.typical:.0f} tokens/s, reading {speed.prefill_per_s.typical:.0f} tokens/s), each as "
            f"if it had a core of its own. Every user asks for {COUNTED} counted answers of at most "
            f"{arguments.max_tokens} tokens, one after another; ratios are of tokens/s from the request to the last "
            "token, answer by answer, to the same answers without drafts, with bootstrap intervals of 95 %."
        ),
        "rows": sorted([*kept, *rows], key=lambda row: row["users"]),
    }
    write(out / "real_prompts.json", {**raw, "users": users})
    print(f"written: {out / 'real_prompts.json'} and {write_readme(out)}")


def measured_speed(arguments: Namespace) -> DraftSpeed:
    """Of the real draft model, on this process's core."""
    path = draft_models(arguments.target, {"distilled": arguments.distilled}).get("distilled")
    if path is None:
        raise UsageError(f"the draft model {arguments.distilled} is not here; name one with --distilled")
    drafter = LlamaCppFactory(str(path), 1).create()
    drafter.begin(range(1000, 1000 + READ), Sampler(SamplingParams(temperature=0), noise_key(SEED)))
    drafted = drafter.propose()
    times = [time.perf_counter()]
    for _ in range(WRITTEN):
        next(drafted)
        times.append(time.perf_counter())
    drafter.close()
    token = statistics.median(later - earlier for earlier, later in pairwise(times[1:]))
    return DraftSpeed(path.stem, _measured(1 / token), _measured(READ / (times[1] - times[0])))


def _measured(value: float) -> Quantity:
    return Quantity(value, value, value, "measured by lab/benchmarks/real_users.py")


if __name__ == "__main__":
    sys.exit(main())
