"""Published figures beside ours: in which cells each of them holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.testbed.report import cell_figures as cells
from lab.testbed.report.cell_capacity import capacities
from lab.testbed.report.cell_figures import ENOUGH, OURS, PLAIN, Cell
from lab.testbed.report.grid_maps import TITLES
from lab.testbed.report.grid_verdict import CLAIM_HEAD, claim_rows
from lab.testbed.report.html import Html, Section, loss, paragraph, table, text
from lab.testbed.report.results import Result


def _throughput(baseline: str) -> Callable[[Cell], float | None]:
    return lambda cell: cells.ratio(cell, "output_throughput", baseline)


def _capacity(baseline: str) -> Callable[[Cell], float | None]:
    def of(cell: Cell) -> float | None:
        found = capacities(cell)
        return found[baseline] / found[PLAIN] if baseline in found and found.get(PLAIN) else None

    return of


@dataclass(frozen=True)
class Claim:
    """A ratio to centralized serving as published."""

    who: str
    what: str
    published: float
    ours: Callable[[Cell], float | None]
    at_least: bool  # whether it holds where ours is as high, or where ours is as low

    def holds(self, value: float) -> bool:
        return value >= self.published if self.at_least else value < 1


CLAIMS = (
    Claim("SLED", "throughput, as published", 2.2, _throughput("sled-static"), True),
    Claim("SLED", "throughput, continuous batches", 2.2, _throughput("sled-continuous"), True),
    Claim("SLED", "capacity, as published", 2.8, _capacity("sled-static"), True),
    Claim("SLED", "capacity, continuous batches", 2.8, _capacity("sled-continuous"), True),
    Claim("WISP", "throughput, as published, lower", 0.52, _throughput("sled-static"), False),
    Claim("WISP", "capacity, as published, lower", 0.51, _capacity("sled-static"), False),
)


OURS_HEAD = (Html("OpenSLED:<br>throughput"), Html("OpenSLED:<br>capacity"))


def section(result: Result, grids: Sequence[Result]) -> Section:
    """Each claim against every cell of regimes.json, and where on each simulated grid it holds."""
    found: Sequence[Cell] = result.content["cells"]
    note = paragraph(
        "SLED: arXiv 2506.09397; WISP: arXiv 2601.11652, by the same group. Ratios to centralized in our cells; "
        "capacity as simulated. A published gain counts as reproduced where ours is at least as high; "
        "WISP's finding counts as reproduced wherever SLED as published stays below centralized. The last columns are "
        "what OpenSLED does in the same cells.",
        kind="note",
    )
    claims = [claim for claim in CLAIMS if any(claim.ours(cell) is not None for cell in found)]
    rows = [
        ["published", *(f"{claim.published:g}x" for claim in claims), "–", "–"],
        *([cell["id"], *(_ratio(claim.ours(cell)) for claim in claims), *_opensled(cell)] for cell in found),
        ["reproduced in", *(_count(claim, found) for claim in claims), "–", "–"],
    ]
    head = ["", *(Html(f"{text(claim.who)}:<br>{text(claim.what)}") for claim in claims), *OURS_HEAD]
    body = note + table(head, rows) + "".join(map(_on_grid, grids))
    return Section("claims", "Published claims, checked", body)


def _on_grid(grid: Result) -> str:
    places = table(CLAIM_HEAD, claim_rows(grid.content["points"]), words=(0, 1, 2, 4))
    return f"<h3>{text(TITLES[grid.path.stem])} ({text(grid.label)})</h3>{places}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}x"


def _opensled(cell: Cell) -> list[str | Html]:
    """OpenSLED over centralized, as under OURS_HEAD."""
    return [_marked(of(OURS)(cell)) for of in (_throughput, _capacity)]


def _marked(value: float | None) -> str | Html:
    return loss(_ratio(value)) if value is not None and value < ENOUGH else _ratio(value)


def _count(claim: Claim, found: Sequence[Cell]) -> str:
    values = [value for cell in found if (value := claim.ours(cell)) is not None]
    return f"{sum(map(claim.holds, values))} of {len(values)} cells"
