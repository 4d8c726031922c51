"""Bench Figures: one part of the system against the bare alternative."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.testbed.report.cell_figures import short
from lab.testbed.report.html import (
    Section,
    folded,
    loss,
    origin,
    paragraph,
    plot,
    prose,
    table,
    text,
    times,
)
from lab.testbed.report.plots_bars import ratios
from lab.testbed.report.results import Result

HEAD = ("against", "ratio", "spread", "required")


def section(results: Sequence[Result], page_folder: Path) -> Section:
    """A plot of ratios and a table for each figure."""
    note = paragraph(
        "Measured in turns (A B A B) in one run: median of the repeats' ratios, with the lowest and the highest. "
        "Above 1 OpenSLED is the better one; hollow points and ▼ are below.",
        kind="note",
    )
    return Section("components", "Components", note + "".join(figure(each, page_folder) for each in results))


def figure(result: Result, page_folder: Path) -> str:
    """One bench Figure with its heading."""
    content = result.content
    name = f"component-{result.path.stem}"
    rows = content["ratios"]
    drawn = plot(ratios(name, f"{result.title}: ratios, see the table", rows)) if rows else ""
    values = [[series, f"{short(value)} {content['unit']}"] for series, value in content["medians"].items()]
    return (
        f"<h3>{text(result.title)}</h3>{origin(result, page_folder)}{paragraph(prose(content['compared']))}{drawn}"
        f"{table(HEAD, list(map(_row, rows))) if rows else ''}{folded('medians', table(['series', 'median'], values))}"
    )


def _row(ratio: Mapping[str, Any]) -> list[object]:
    required = ratio.get("required")
    return [
        ratio["name"],
        times(ratio["ratio"]),
        f"{ratio['lowest']:.2f} to {ratio['highest']:.2f}",
        _bar(ratio["ratio"], required) if required is not None else "",
    ]


def _bar(ratio: float, required: float) -> object:
    return f"{required:g}, met" if ratio >= required else loss(f"{required:g}, missed")
