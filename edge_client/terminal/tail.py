"""Text at the end of a terminal's output that is taken back later: a guess of the text to come, and a status.

The position of the cursor and the width of a character are known only roughly. So rows below are reserved first, then
the position is saved (DECSC), and the tail is removed by a return to that position (DECRC).
"""

import os
import re
import sys
import unicodedata
from dataclasses import dataclass
from typing import TextIO

from edge_client.terminal.colour import Palette, palette
from opensled.printable import visible

SAVE, RESTORE, WIPE, DOWN, UP = "\x1b7", "\x1b8", "\x1b[J", "\x1bD", "\x1b[{}A"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
EMOJI = "\U0001f000"  # from here on characters are wide, or unknown and better taken for wide


class Tail:
    """Of a file or a pipe: no tail. The caller writes what a method returns, and nothing else while a tail is shown."""

    def follow(self, text: str) -> None:
        """`text` was written and stays."""

    def show(self, guess: str, status: str = "") -> str:
        """Show this tail instead of the one before."""
        return ""

    def clear(self) -> str:
        """Take the tail back."""
        return ""


class LiveTail(Tail):
    """For terminals that can take text back."""

    def __init__(self, palette: Palette, out: TextIO) -> None:
        self._palette, self._out = palette, out
        # Of the cursor after the text that stays; at the full width the next character wraps
        self._column = 0
        self._shown = ("", "")

    def follow(self, text: str) -> None:
        width = self._size().columns
        for character in _COLOURS.sub("", text):
            if character == "\n":
                self._column = 0
            else:
                cells = cells_of(character)
                self._column = cells if self._column + cells > width else self._column + cells

    def show(self, guess: str, status: str = "") -> str:
        """See `Tail`; of a guess higher than the screen it shows the beginning."""
        if (guess, status) == self._shown:
            return ""
        back = self.clear()
        placed = self._placed(visible(guess), f" ({status})" if status else "")
        self._shown = (guess, status) if placed else ("", "")
        return back + placed

    def clear(self) -> str:
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
class DumbTail(Tail):
    """For terminals that cannot take text back: a guess stands between brackets and ends with a newline."""

    shown: str | None = None

    def show(self, guess: str, status: str = "") -> str:
        """See `Tail`; a guess that the target has partly verified does not grow any more."""
        if not status:
            return ""
        opening = " [waiting for the server" if self.shown is None else ""
        before = self.shown or ""
        self.shown = guess if guess.startswith(before) else before
        opening += "; not confirmed: " if self.shown and not before else ""
        return opening + visible(self.shown[len(before) :])

    def clear(self) -> str:
        was_shown, self.shown = self.shown is not None, None
        return "]\n" if was_shown else ""


def tail_of(out: TextIO, palette: Palette) -> Tail:
    """The kind of tail that `out` can show."""
    if not out.isatty():
        return Tail()
    return DumbTail() if os.environ.get("TERM", "dumb") in ("dumb", "") else LiveTail(palette, out)


class Stderr:
    """A status on standard error beside a text on standard output, which may be the same terminal."""

    def __init__(self) -> None:
        self._tail = tail_of(sys.stderr, palette("auto", sys.stderr))

    def wrote(self, text: str) -> None:
        """`text` goes to standard output next."""
        self._write(self._tail.clear())
        if sys.stdout.isatty():
            self._tail.follow(text)

    def waiting(self, seconds: float) -> None:
        """Show for how many seconds the server is away; 0 = it is not."""
        self._write(self._tail.show("", waiting_for(seconds)))

    def _write(self, text: str) -> None:
        if text:
            print(text, end="", file=sys.stderr, flush=True)


def waiting_for(seconds: float) -> str:
    """The status line while the server is away; "" = it is not away, or for less than a second."""
    return f"waiting for the server, {seconds:.0f} s" if seconds >= 1 else ""


def marked(guess: str, palette: Palette) -> str:
    """A guess as it is shown: dim and underlined, without colours in brackets."""
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
    """Columns of a character on a terminal, as Unicode defines them (UAX 11)."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    wide = character >= EMOJI or unicodedata.east_asian_width(character) in "WF"
    return 2 if wide else 1


def rows(column: int, guess: str, status: str, width: int) -> int:
    """The most rows below the cursor that this tail takes, from `column` on."""
    below = 0
    for index, line in enumerate(f"{guess}[]{status}".split("\n")):
        cells = sum(max(1, cells_of(character)) for character in line) + (0 if index else column)
        # A wide character that does not fit leaves a column empty: in the worst case each row has one less.
        below += (index > 0) + cells // max(1, width - 1)
    return below
