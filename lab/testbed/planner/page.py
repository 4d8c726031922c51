"""Words and tables of a plan, as wide as the terminal, but no wider than is easy to read."""

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence

WIDEST = 100


def columns() -> int:
    """Characters of a line."""
    return min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], heads: int = 1) -> str:
    """The first column to the left, the others to the right; `heads`: lines of the head, the first rows among them."""
    cells = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = list(_lines(cells, widths))
    return "\n".join([*lines[:heads], "-" * max(map(len, lines)), *lines[heads:]])


def _lines(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for first, *rest in cells:
        others = (cell.rjust(width) for cell, width in zip(rest, widths[1:]))
        yield "  ".join([first.ljust(widths[0]), *others]).rstrip()


def wrapped(words: str, width: int) -> str:
    """The words in lines of `width` characters."""
    return textwrap.fill(words, width, break_on_hyphens=False, break_long_words=False)


def assumed(words: Mapping[str, str]) -> str:
    """What a plan rests on, a title and its words a line."""
    indent = 2 + max(map(len, words))
    lines = [
        textwrap.fill(each, columns(), initial_indent=title.ljust(indent), subsequent_indent=" " * indent)
        for title, each in words.items()
    ]
    return "\n".join(["assumed:", *lines])
