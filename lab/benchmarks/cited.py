"""Figures in the pages are data: a number that a page prints is the one in the file that stands behind it.

    1.42x<!-- serving.json: summary / 8 users / ratio -->

The comment follows the number, which may carry a unit. It names a file of docs/benchmarks, and the way to the value in
it. A step of the way is a key, the `name` of an entry of a list, or its place. The number must be the value, rounded to
the digits shown.

    python -m lab.benchmarks.cited [PAGE ...]      # what differs; exits with 1 if anything does
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.benchmarks.program import FOLDER, parser_of

COMMENT = re.compile(
    r"(?P<number>-?\d[\d,]*(?:\.\d+)?)(?P<unit>[^\d<]{0,12})<!-- (?P<file>[\w./-]+\.json): (?P<way>.+?) -->"
)
UNREAD = re.compile(r"<!-- [\w./-]+\.json: ")


class Cited(NamedTuple):
    """One number of a page, and where it comes from."""

    line: int
    number: str
    percent: bool
    file: str
    way: tuple[str, ...]


def cited(text: str) -> Iterator[Cited]:
    """The numbers of a page that name their data."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in COMMENT.finditer(line):
            way = tuple(step.strip() for step in found["way"].split(" / "))
            yield Cited(number, found["number"].replace(",", ""), "%" in found["unit"], found["file"], way)


def faults(page: Path, folder: Path = FOLDER) -> list[str]:
    """What is wrong with the numbers of a page, a line for each."""
    text = page.read_text()
    all_cited = list(cited(text))
    found = [f"{page}:{each.line}: {why}" for each in all_cited if (why := _fault(each, folder))]
    if len(all_cited) != len(UNREAD.findall(text)):
        found.append(f"{page}: a comment names data, and no number stands before it")
    return found


def _fault(each: Cited, folder: Path) -> str:
    try:
        value = _follow(json.loads((folder / each.file).read_text()), each.way)
    except (OSError, LookupError, TypeError, ValueError) as error:
        return f"{each.file} has no {' / '.join(each.way)}: {error!r}"
    digits = len(each.number.partition(".")[2])
    shown = f"{100 * value if each.percent else value:.{digits}f}"
    return "" if shown == each.number else f"the page says {each.number}, {each.file} {shown}"


def _follow(value: Any, way: Sequence[str]) -> float:
    for step in way:
        if isinstance(value, list):
            named = [each for each in value if isinstance(each, dict) and each.get("name") == step]
            value = named[0] if named else value[int(step)]
        else:
            value = value[step]
    return float(value)


def main(words: list[str] | None = None) -> int:
    parser = parser_of("cited", __doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="default: README.md and docs/*.md")
    pages = parser.parse_args(words).pages or [Path("README.md"), *sorted(Path("docs").glob("*.md"))]
    found = [fault for page in pages for fault in faults(page)]
    print("\n".join(found) or "every number that names its data is the one in the data")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
