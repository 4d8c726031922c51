"""Words at the end of what a terminal shows that will be taken back: a guess of the text to come, and a status.

A terminal is not asked where its cursor is, and how wide it draws a character is known only roughly. So room is made
below first, then the place is saved (DECSC), and whatever the words took, they are wiped by going back there (DECRC).
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from dataclasses import dataclass
from typing import Protocol, TextIO

from edge_client.terminal.colour import Palette, palette, visible

SAVE, RESTORE, WIPE, DOWN, UP = "\x1b7", "\x1b8", "\x1b[J", "\x1bD", "\x1b[{}A"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
EMOJI = "\U0001f000"  # from here on characters are wide, or unknown and better taken for wide


class Tail(Protocol):
    """What each method returns is to be written; nothing else may be written while words are shown."""

    def follow(self, text: str) -> None:
        """`text` was written, to stay."""

    def show(self, guess: str, status: str = "") -> str:
        """Show these words instead of those shown before."""

    def clear(self) -> str:
        """Take back what is shown."""


class NoTail:
    """For files and pipes: they get what stays, and nothing else."""

    def follow(self, text: str) -> None:
        pass

    def show(self, guess: str, status: str = "") -> str:
        return ""

    def clear(self) -> str:
        return ""


class LiveTail:
    """For terminals that can take words back."""

    def __init__(self, palette: Palette, out: TextIO) -> None:
        self._palette, self._out = palette, out
        self._column = 0  # of the cursor behind what stays; equal to the width: the next character wraps
        self._shown = ("", "")

    def follow(self, text: str) -> None:
        """See `Tail`."""
        width = self._size().columns
        for character in _COLOURS.sub("", text):
            if character == "\n":
                self._column = 0
            else:
                cells = cells_of(character)
                self._column = cells if self._column + cells > width else self._column + cells

    def show(self, guess: str, status: str = "") -> str:
        """See `Tail`; of a guess higher than the screen the beginning is shown."""
        if (guess, status) == self._shown:
            return ""
        back = self.clear()
        placed = self._placed(visible(guess), f" ({status})" if status else "")
        self._shown = (guess, status) if placed else ("", "")
        return back + placed

    def clear(self) -> str:
        """See `Tail`."""
        was_shown, self._shown = any(self._shown), ("", "")
        return RESTORE + WIPE if was_shown else ""

    def _placed(self, guess: str, status: str) -> str:
        size, wrapped = self._size(), ""
        if (guess or status) and self._column >= size.columns:
            wrapped, self._column = "\n", 0  # a move of the cursor would undo the wrap that is due
        guess, status = fitting(guess, status, self._column, size)
        if not guess and not status:
            return wrapped
        below = rows(self._column, guess, status, size.columns)
        reserved = DOWN * below + UP.format(below) if below else ""
        return wrapped + reserved + SAVE + marked(guess, self._palette) + self._palette(status, "dim")

    def _size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            size = os.terminal_size((80, 24))
        return size if size.columns and size.lines else os.terminal_size((80, 24))


@dataclass
class DumbTail:
    """For terminals that cannot take anything back: a guess stands between brackets, and ends with a line."""

    shown: str | None = None

    def follow(self, text: str) -> None:
        """See `Tail`."""

    def show(self, guess: str, status: str = "") -> str:
        """See `Tail`; once some of it is judged, nothing more is shown of a guess."""
        if not status:
            return ""
        opening = " [waiting for the server" if self.shown is None else ""
        before = self.shown or ""
        self.shown = guess if guess.startswith(before) else before
        opening += "; not confirmed: " if self.shown and not before else ""
        return opening + visible(self.shown[len(before) :])

    def clear(self) -> str:
        """See `Tail`."""
        was_shown, self.shown = self.shown is not None, None
        return "]\n" if was_shown else ""


def tail_of(out: TextIO, palette: Palette) -> Tail:
    """The one that fits where `out` goes to."""
    if not out.isatty():
        return NoTail()
    return DumbTail() if os.environ.get("TERM", "dumb") in ("dumb", "") else LiveTail(palette, out)


class Stderr:
    """A status on standard error beside a text on standard output, which may be the same terminal."""

    def __init__(self) -> None:
        self._tail = tail_of(sys.stderr, palette("auto", sys.stderr))

    def wrote(self, text: str) -> None:
        """`text` is on its way to standard output."""
        self._write(self._tail.clear())
        if sys.stdout.isatty():
            self._tail.follow(text)

    def waiting(self, seconds: float) -> None:
        """The server is away; 0 = it is not."""
        self._write(self._tail.show("", waiting_for(seconds)))

    def _write(self, text: str) -> None:
        if text:
            print(text, end="", file=sys.stderr, flush=True)


def waiting_for(seconds: float) -> str:
    """A server that is away in words, for a person; "" = it is not, or not for long enough to speak of it."""
    return f"waiting for the server, {seconds:.0f} s" if seconds >= 1 else ""


def marked(guess: str, palette: Palette) -> str:
    """A guess as its readers see it: dim and underlined, without colours in brackets."""
    if not guess or palette.on:
        return palette(guess, "guess")
    return f"[{guess}]"


def fitting(guess: str, status: str, column: int, size: os.terminal_size) -> tuple[str, str]:
    """A guess cut so that it fits on the screen with the status: what scrolls away cannot be taken back."""
    if rows(column, guess, status, size.columns) < size.lines:
        return guess, status
    status = "…" + status
    while guess and rows(column, guess, status, size.columns) >= size.lines:
        guess = guess[: len(guess) * 7 // 8]
    fits = rows(column, guess, status, size.columns) < size.lines
    return (guess, status) if fits else ("", "")


def cells_of(character: str) -> int:
    """Columns that a terminal gives to a character, to the best of Unicode's knowledge (UAX 11)."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    wide = character >= EMOJI or unicodedata.east_asian_width(character) in "WF"
    return 2 if wide else 1


def rows(column: int, guess: str, status: str, width: int) -> int:
    """Rows below the cursor's that these words take at most, from `column` on."""
    below = 0
    for index, line in enumerate(f"{guess}[]{status}".split("\n")):
        cells = sum(max(1, cells_of(character)) for character in line) + (0 if index else column)
        # A wide character that does not fit leaves a column empty: in the worst case each row has one less.
        below += (index > 0) + cells // max(1, width - 1)
    return below
