"""`make bench`: every figure of docs/benchmarks anew, with the time that each part took.

    python -m lab.benchmarks.suite [--out FOLDER]

A part that fails does not stop the others; the exit code says so.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lab.benchmarks.program import FOLDER, parser_of


class Part(NamedTuple):
    """One command of the suite; it takes --out FOLDER."""

    name: str
    module: str
    words: tuple[str, ...] = ()


PARTS = (
    Part("components and peer", "lab.benchmarks"),
    Part("the doctor's prediction", "lab.benchmarks.doctor_prediction", ("--keep",)),
    Part("attacks on availability", "lab.benchmarks.attacks"),
    Part("six cells, emulated", "lab.benchmarks.regimes"),
    Part("grid and map, simulated", "lab.benchmarks.grid"),
    Part("short grids by drafts, simulated", "lab.benchmarks.grid_set"),
)


class Done(NamedTuple):
    """A part that has ended."""

    name: str
    seconds: float
    code: int


def main(words: list[str] | None = None) -> int:
    parser = parser_of("suite", __doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="default %(default)s")
    out = parser.parse_args(words).out
    done = [_timed(part.name, (part.module, *part.words, "--out", str(out))) for part in PARTS]
    print(table(done))
    return max(each.code for each in done)


def _timed(name: str, command: Sequence[str]) -> Done:
    print(f"== {name}: -m {' '.join(command)}", flush=True)
    started = time.monotonic()
    code = subprocess.run([sys.executable, "-m", *command]).returncode
    return Done(name, time.monotonic() - started, int(code != 0))


def table(done: Sequence[Done]) -> str:
    """Minutes of each part and of all."""
    lines = [
        f"{each.name:28}{each.seconds / 60:7.1f} min{'' if not each.code else '  FAILED'}" for each in done
    ]
    return "\n".join([*lines, f"{'all':28}{sum(each.seconds for each in done) / 60:7.1f} min"])


if __name__ == "__main__":
    sys.exit(main())
