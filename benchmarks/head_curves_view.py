"""head_curves.json for docs/benchmarks/README.md and the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.program import table


def section(document: Mapping[str, Any]) -> list[str]:
    """For README.md."""
    head = (
        "target",
        "head",
        "rows drafted from",
        "tokens a step",
        "at as many rows as the least of a target",
    )
    rows = [row for target, curves in document["curves"].items() for row in _rows(target, curves)]
    return [
        "## What draft heads have learned",
        "",
        "![Tokens a step by rows drafted from](head_curves.svg)",
        "",
        "Greedy answers of the target to prompts that no head has learned from, walked as a server would: tokens that "
        "a step of the target writes with the head's likeliest draft.",
        "",
        *table(head, rows),
        "",
    ]


def _rows(target: str, curves: Mapping[str, Sequence[Sequence[float]]]) -> Iterator[list[str]]:
    least = min(points[-1][0] for points in curves.values())
    for name, points in curves.items():
        rows = points[-1][0]
        early = [point for point in points if point[0] <= least]
        alike = f"{early[-1][1]:.2f} at {early[-1][0]:,}" if early else "not measured"
        yield [target, name, f"{rows:,}", f"{max(each for _, each in points):.2f}", alike]
