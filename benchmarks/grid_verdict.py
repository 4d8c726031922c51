"""Whether OpenSLED is ever worse than the best of the others on the simulated grid; exits with 1 where it is.

python -m benchmarks.grid_verdict [docs/benchmarks/grid.json ...]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.findings import add_grids, grids_of
from benchmarks.program import exit_code, parser_of
from opensled_testbed.report.grid_verdict import told, verdict


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of("grid_verdict", __doc__)
    add_grids(parser)
    paths = parser.parse_args(words).grids
    return exit_code(lambda: _judged(paths))


def _judged(paths: Sequence[Path]) -> int:
    kept = True
    for path, grid in grids_of(paths):
        found = verdict(grid["points"])
        print(f"{path}:", told(found), sep="\n")
        kept = kept and found.kept
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
