"""Prints findings: aligned lines under headings, wrapped to the terminal, each problem with its fix."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence

from edge_client.checks.finding import Finding, Status
from edge_client.terminal.colour import Palette

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
CHECK_WIDTH = 20  # columns of the widest name of a check
NARROWEST = 60  # columns; narrower lines would break words


def show(heading: str, findings: Sequence[Finding], palette: Palette) -> None:
    """One group of findings."""
    print(palette(heading, "bold"))
    for finding in findings:
        status = palette(f"{finding.status:4}", COLOURS[finding.status])
        name, *rest = _wrapped(f"{finding.check:{CHECK_WIDTH}} {finding.detail}")
        print(f"  {status}  {name}")
        for line in rest:
            print(f"        {line}")
        if finding.fix:
            print(f"        {'':{CHECK_WIDTH}} {palette('fix: ', 'bold')}{finding.fix}")
    print(flush=True)


def _wrapped(text: str) -> list[str]:
    """The lines of a finding, the later ones under its detail; one long line for a pipe."""
    if not sys.stdout.isatty():
        return [text]
    width = max(NARROWEST, shutil.get_terminal_size().columns) - 8
    indent = " " * (CHECK_WIDTH + 1)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or [text]


def summary(findings: Sequence[Finding], palette: Palette) -> str:
    """The last line: the number of findings of each status."""
    counts = Counter(finding.status for finding in findings)
    names: dict[Status, str] = {"ok": "ok", "warn": "warning", "fail": "failure"}
    parts = []
    for status, name in names.items():
        plural = "s" * (status != "ok" and counts[status] != 1)
        parts.append(palette(f"{counts[status]} {name}{plural}", COLOURS[status] if counts[status] else ""))
    return ", ".join(parts)
