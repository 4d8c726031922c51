"""The short grids of a set of drafts: recorded with a pair, and made up with the acceptance of each task.

    python -m lab.benchmarks.grid_set [NAME ...] [--pair NAME] [--out FOLDER] [--jobs N]

Names are those of recorded pairs and of tasks; by default the pair that predictions rest on, then all tasks. Made-up
drafts are on the texts of --pair. A grid that is there already stays, and one that was ended goes on: run it again
until nothing is left. To measure one anew, remove its file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.benchmarks import grid
from lab.benchmarks.grid_document import name_of
from lab.benchmarks.program import FOLDER, exit_code, parser_of, say
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from lab.testbed.planner.task_acceptance import TASKS
from lab.testbed.recordings import BUNDLED_PAIR, DEFAULT_PAIR, PAIRS
from opensled.core.errors import UsageError

NAMES = (*PAIRS, *TASKS)


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    return exit_code(lambda: _all(arguments))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("grid_set", __doc__)
    add = parser.add_argument
    add("names", nargs="*", default=[DEFAULT_PAIR, *TASKS], metavar="NAME", help=f"of {', '.join(NAMES)}")
    add("--pair", default=BUNDLED_PAIR, choices=tuple(PAIRS), help="whose texts; default %(default)s")
    add("--out", type=Path, default=FOLDER, help="folder; default %(default)s")
    add("--jobs", type=int, default=1, metavar="N", help="processes; default %(default)s")
    return parser.parse_args(words)


def _all(arguments: argparse.Namespace) -> int:
    """Until one fails or is interrupted."""
    for name in arguments.names:
        if code := _measured(name, arguments):
            return code
    return 0


def _measured(name: str, arguments: argparse.Namespace) -> int:
    """Exit code of one grid."""
    if name not in NAMES:
        raise UsageError(f"no drafts {name!r}; choose from {', '.join(NAMES)}")
    source = RecordedDrafts(name) if name in PAIRS else RecordedDrafts(arguments.pair, name)
    file = arguments.out / f"{name_of(source, short=True)}.json"
    if file.is_file():
        say(f"kept: {file}")
        return 0
    words = ["--short", "--pair", source.pair, "--out", str(arguments.out), "--jobs", str(arguments.jobs)]
    words += ["--acceptance", source.acceptance] if source.acceptance else []
    words += ["--resume"] if file.with_suffix(".part").is_file() else []
    return grid.main(words)


if __name__ == "__main__":
    sys.exit(main())
