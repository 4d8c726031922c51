"""Figures in the pages are data: a number that a page prints is the one in the file that stands behind it.

    1.42x<!-- serving.json: summary / 8 users / ratio -->

The comment follows the number, which may carry a unit. It names a file of docs/benchmarks, and the way to the value in
it. A step of the way is a key, the `name` of an entry of a list, or its place. The number must be the value, rounded to
the digits shown; a hundred times the value before `%`, or where the way ends with ` * 100`.

    python -m lab.benchmarks.cited [PAGE ...]      # what differs; exits with 1 if anything does
    python -m lab.benchmarks.cited --write         # put the values of today there; words around them are not read
"""

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
MISSING = (OSError, LookupError, TypeError, ValueError)  # what a file or way that is not there raises
TIMES_100 = " * 100"  # for points
UNREAD = re.compile(r"<!-- [\w./-]+\.json: ")


class Cited(NamedTuple):
    """One number of a page, and where it comes from."""

    line: int
    number: str
    hundredfold: bool
    file: str
    way: tuple[str, ...]


def cited(text: str) -> Iterator[Cited]:
    """The numbers of a page that name their data."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in COMMENT.finditer(line):
            yield _cited(found, number)


def _cited(found: re.Match[str], line: int = 0) -> Cited:
    words = found["way"]
    way = tuple(step.strip() for step in words.removesuffix(TIMES_100).split(" / "))
    hundredfold = "%" in found["unit"] or words.endswith(TIMES_100)
    return Cited(line, found["number"].replace(",", ""), hundredfold, found["file"], way)


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
        shown = _value(each, folder)
    except MISSING as error:
        return f"{each.file} has no {' / '.join(each.way)}: {error!r}"
    return "" if shown == each.number else f"the page says {each.number}, {each.file} {shown}"


def _value(each: Cited, folder: Path) -> str:
    """As the page should show it; raises what a missing file or way raises."""
    value = _follow(json.loads((folder / each.file).read_text()), each.way)
    digits = len(each.number.partition(".")[2])
    return f"{100 * value if each.hundredfold else value:.{digits}f}"


def renewed(text: str, folder: Path = FOLDER) -> str:
    """A page with the values of today, to as many digits as before. A number whose data is not there stays."""

    def renew(found: re.Match[str]) -> str:
        try:
            value = _value(_cited(found), folder)
        except MISSING:
            return found[0]
        shown = f"{float(value):,.{len(value.partition('.')[2])}f}" if "," in found["number"] else value
        return shown + found[0].removeprefix(found["number"])

    return COMMENT.sub(renew, text)


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
    parser.add_argument("--write", action="store_true", help="renew the numbers of the pages")
    arguments = parser.parse_args(words)
    pages = arguments.pages or [Path("README.md"), *sorted(Path("docs").glob("*.md"))]
    for page in pages if arguments.write else ():
        page.write_text(renewed(page.read_text()))
    found = [fault for page in pages for fault in faults(page)]
    print("\n".join(found) or "every number that names its data is the one in the data")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
