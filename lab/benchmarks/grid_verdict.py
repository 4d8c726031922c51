"""Whether OpenSLED is ever worse than the best of the others on the simulated grid; exits with 1 where it is.

python -m lab.benchmarks.grid_verdict [docs/benchmarks/grid.json ...]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lab.benchmarks.findings import WHOLE_GRID, add_grids
from lab.benchmarks.grid_document import read
from lab.benchmarks.grid_shares import told, verdict
from lab.benchmarks.program import exit_code, parser_of


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of("grid_verdict", __doc__)
    add_grids(parser, (WHOLE_GRID,))
    paths = parser.parse_args(words).grids
    return exit_code(lambda: _judged(paths))


def _judged(paths: Sequence[Path]) -> int:
    found = {path: verdict(read(path)["points"]) for path in paths}
    for path, each in found.items():
        print(f"{path}:", told(each), sep="\n")
    return int(not all(each.kept for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
