"""What the simulated grids and the law say, as the tables of a page: where drafts pay, where they lose.

python -m lab.benchmarks.findings [--write docs/planning.md]
"""

import json
from collections.abc import Sequence
from pathlib import Path

from lab.benchmarks.agreement import HEAD as ERRORS_HEAD
from lab.benchmarks.agreement import errors
from lab.benchmarks.cell_figures import Cell
from lab.benchmarks.grid import Grid, read
from lab.benchmarks.grid_view import claims, law_errors, ratios, reading
from lab.benchmarks.law_table import HEAD as LAW_HEAD
from lab.benchmarks.law_table import law_rows
from lab.benchmarks.program import FOLDER, exit_code, parser_of, table
from lab.testbed.planner.acceptance import by_place
from lab.testbed.planner.task_acceptance import TASKS
from lab.testbed.recordings import DEFAULT_PAIR
from opensled.core.errors import UsageError

BEGIN, END = "<!-- findings: begin -->", "<!-- findings: end -->"
LAW = "*Derived*: the places of the map by the law, a gain below 5 % counting for the server's own decoding."
EMULATED = (
    "How far the simulator is from the same users on real processes, in emulated time (`python -m "
    "lab.benchmarks.regimes`, [raw data](benchmarks/regimes.json)):"
)
TASK_HEAD = (
    "`--acceptance`",
    "at each position",
    "tokens a round of 4 drafted",
    "drafts on",
    "published, rounded by us",
)


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of("findings", __doc__)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put it into this page, between its marks")
    page = parser.parse_args(words).write
    return exit_code(lambda: _shown(page))


def _shown(page: Path | None) -> int:
    text = findings(grids_there(), emulated_cells())
    if page:
        put(text, page)
    else:
        print(text)
    return 0


def findings(grids: Sequence[Grid], emulated: Sequence[Cell] = ()) -> str:
    """Markdown; of the grids only what is there. `emulated`: cells of regimes.json."""
    blocks = ["### By the acceptance of the drafts", _text(TASK_HEAD, task_rows()), LAW]
    blocks += [_text(LAW_HEAD, law_rows())]
    if grids:
        blocks += ["### Users held", _head(grids), ratios(grids), reading(grids)]
        blocks += ["At how many places what others claim holds:", claims(grids)]
    for grid in grids:
        if grid["source"]["pair"] == DEFAULT_PAIR and not grid["source"]["acceptance"]:
            blocks += [f"How far the law is from the simulator, drafts {grid['drafts']}:", law_errors(grid)]
    if emulated:
        blocks += [EMULATED, _text(ERRORS_HEAD, errors(emulated))]
    return "\n\n".join(blocks)


def _head(grids: Sequence[Grid]) -> str:
    axes, facts = grids[0]["axes"], grids[0]["facts"]
    sizes = ", ".join(f"{len(axes[name])} {name}" for name in ("regimes", "links", "devices", "paces"))
    runs = sum(grid["facts"]["simulations"] for grid in grids)
    return (
        f"*Simulated*: {len(grids[0]['points'])} places ({sizes}) with each kind of drafts, {runs} simulations. A "
        f"capacity is the {facts['capacity']}. A ratio is to the server's own decoding at the same place."
    )


def task_rows() -> list[tuple[str, ...]]:
    """Acceptance by task, under TASK_HEAD."""
    return [
        (f"`{name}`", f"{task.rate:.2f}", f"{by_place(task.rate).tokens[4]:.2f}", task.words, task.source)
        for name, task in sorted(TASKS.items(), key=lambda each: each[1].rate)
    ]


def _text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(table(head, rows))


def put(text: str, path: Path) -> None:
    """Replace what stands between the marks of a page; raises UsageError for a page without them."""
    page = path.read_text("utf-8") if path.is_file() else ""
    if BEGIN not in page or END not in page:
        raise UsageError(f"{path} has no {BEGIN} and {END}")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", "utf-8")


def emulated_cells(folder: Path = FOLDER) -> list[Cell]:
    """Those of regimes.json, if it is there."""
    path = folder / "regimes.json"
    return list(json.loads(path.read_text("utf-8"))["cells"]) if path.is_file() else []


def grids_there(folder: Path = FOLDER) -> list[Grid]:
    """The grids that are there, each complete."""
    return [read(path) for path in sorted(folder.glob("grid-*.json"))]


if __name__ == "__main__":
    raise SystemExit(main())
