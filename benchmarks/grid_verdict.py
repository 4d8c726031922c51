"""Whether OpenSLED is ever worse than the best of the others on the simulated grid; exits with 1 where it is.

python -m benchmarks.grid_verdict [docs/benchmarks/grid.json ...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.grid_document import read
from opensled.errors import OpenSledError
from opensled_testbed.report.grid_verdict import told, verdict

GRIDS = (Path("docs/benchmarks/grid.json"), Path("docs/benchmarks/grid-adapted.json"))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grid_verdict")
    parser.add_argument(
        "grids", type=Path, nargs="*", metavar="GRID", help=f"default {' '.join(map(str, GRIDS))}"
    )
    paths = parser.parse_args(words).grids or GRIDS
    kept = True
    try:
        for path in paths:
            found = verdict(read(path)["points"])
            print(f"{path}:", told(found), sep="\n")
            kept = kept and found.kept
    except OpenSledError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
