"""What the simulated grid says, in words and tables: where drafting wins, where it loses, and which claims hold where.

python -m lab.benchmarks.findings [docs/benchmarks/grid.json ...] [--write docs/planning.md]

Without names: the table by drafts over all grids that are there, then the whole grid.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.benchmarks.grid_document import read
from lab.benchmarks.grid_shares import (
    CLAIM_HEAD,
    claim_rows,
    place_name,
    rated,
    told,
    verdict,
)
from lab.benchmarks.grid_table import TASK_HEAD, ratios, task_rows
from lab.benchmarks.law_table import HEAD as LAW_HEAD
from lab.benchmarks.law_table import law_rows
from lab.benchmarks.program import FOLDER, exit_code, parser_of, table
from lab.testbed.baselines import CENTRALIZED
from opensled.core.errors import UsageError

WHOLE_GRID = FOLDER / "grid.json"
BEGIN, END = "<!-- findings: begin -->", "<!-- findings: end -->"
LAW = "*Derived*: the places of the map by the law, a gain below 5 % counting for the server's own decoding."
LAW_KEYS = {"median": ".1f", "within_15_percent": ".0f"}
OTHERS = ("server-sd", "sled-static", "sled-continuous", "opensled")
Point = dict[str, Any]


def findings(grid: dict[str, Any]) -> str:
    """Markdown from the JSON of lab/benchmarks/grid.py."""
    points = grid["points"]
    # Whether OpenSLED is ever worse than the best of the others; nothing where it was not measured.
    found = verdict(points)
    extremes = [row for baseline in OTHERS for row in _extreme(points, baseline)]
    blocks = [
        _head(grid),
        "\n".join(f"- {line}" for line in told(found).splitlines()) if found.shares else "",
        _text(("baseline", "", "ratio", "users", "draft length", "place"), extremes),
        _text(CLAIM_HEAD, claim_rows(points)),
        _law(grid),
    ]
    return "\n\n".join(block for block in blocks if block)


def _head(grid: dict[str, Any]) -> str:
    axes, facts = grid["axes"], grid["facts"]
    sizes = ", ".join(f"{len(axes[name])} {name}" for name in ("regimes", "links", "devices", "paces"))
    return (
        f"### Drafts {grid['drafts']}\n\n"
        f"*{grid['label'].capitalize()}*: {len(grid['points'])} places ({sizes}), {facts['simulations']} simulations. "
        f"Capacity is the {facts['capacity']}; ratios are to the server's own decoding at the same place."
    )


def _extreme(points: Sequence[Point], baseline: str) -> Iterator[tuple[str, ...]]:
    """The best and the worst place; of equal ratios the one with the most users."""
    found = rated(points, baseline)
    if not found:
        return
    best = max(found, key=lambda each: (each[0], each[1]["capacity"][baseline]))
    worst = min(found, key=lambda each: (each[0], -each[1]["capacity"][CENTRALIZED]))
    for name, (value, point) in (("best", best), ("worst", worst)):
        users = f"{point['capacity'][baseline]} against {point['capacity'][CENTRALIZED]}"
        yield baseline, name, f"{value:.2f}", users, str(point["draft_length"][baseline]), place_name(point)


def _law(grid: dict[str, Any]) -> str:
    rows = [
        (
            name,
            str(each["points"]),
            *(f"{100 * each[key]:{spelling}} %" for key, spelling in LAW_KEYS.items()),
        )
        for name, each in grid["law_error"].items()
    ]
    return _text(("baseline", "places where speed decides", "law's median error", "within 15 %"), rows)


def _text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(table(head, rows))


def put(text: str, path: Path) -> None:
    """Replace what stands between the marks of a page; raises UsageError for a page without them."""
    page = path.read_text("utf-8") if path.is_file() else ""
    if BEGIN not in page or END not in page:
        raise UsageError(f"{path} has no {BEGIN} and {END}")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", "utf-8")


def grids_there(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The whole grid and the short ones that are there, each complete."""
    return [read(path) for path in sorted(folder.glob("grid*.json"))]


def add_grids(parser: ArgumentParser, default: Sequence[Path]) -> None:
    shown = " ".join(map(str, default)) or "all"
    parser.add_argument(
        "grids", type=Path, nargs="*", metavar="GRID", default=default, help=f"default {shown}"
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of("findings", __doc__)
    add_grids(parser, ())
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put it into this page, between its marks")
    arguments = parser.parse_args(words)
    return exit_code(lambda: _shown(arguments.grids, arguments.write))


def _shown(paths: Sequence[Path], page: Path | None) -> int:
    parts = [findings(read(path)) for path in paths] or _all()
    text = "\n\n".join(parts)
    if page:
        put(text, page)
    else:
        print(text)
    return 0


def _all() -> list[str]:
    parts = ["### By the acceptance of the drafts", _text(TASK_HEAD, task_rows())]
    parts += [LAW, _text(LAW_HEAD, law_rows())]
    if compared := ratios(grids_there()):
        parts += ["*Simulated*, users over those of the server's own decoding:", compared]
    return [*parts, findings(read(WHOLE_GRID))]


if __name__ == "__main__":
    sys.exit(main())
