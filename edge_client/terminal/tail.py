"""Text at the end of a terminal's output that is taken back later: a guess of the text to come, and a status.

The position of the cursor and the width of a character are known only roughly. So rows below are reserved first, then
the position is saved (DECSC), and the tail is removed by a return to that position (DECRC).
"""

import os
from typing import TextIO

from edge_client.terminal.word_wrap import WordWrap
from opensled.cli.colour import Palette
from opensled.core.printable import visible

SAVE, RESTORE, WIPE, DOWN, UP = "\x1b7", "\x1b8", "\x1b[J", "\x1bD", "\x1b[{}A"
USUAL = os.terminal_size((80, 24))


def size_of(out: TextIO) -> os.terminal_size:
    """Of the terminal behind `out`; a usual one where there is none, or where it does not tell."""
    try:
        size = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):
        return USUAL
    return size if size.columns and size.lines else USUAL


def line_width(out: TextIO) -> int:
    """Columns to use: the last one stays free, because terminals differ in when they wrap after it."""
    return size_of(out).columns - 1


class Tail:
    """Of a file or a pipe: no tail. The caller writes what a method returns, and nothing else while a tail is shown."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette

    def put(self, text: str, colour: str = "") -> str:
        """Take the tail back and go on with `text`, which stays."""
        return self._palette(text, colour)

    def show(self, guess: str, status: str = "") -> str:
        """Show this tail instead of the one before."""
        return ""


class LiveTail(Tail):
    """For terminals that can take text back."""

    def __init__(self, palette: Palette, out: TextIO) -> None:
        super().__init__(palette)
        self._out = out
        self._wrap = WordWrap(palette, lambda: self._size().columns - 1)
        self._shown = ("", "")

    def put(self, text: str, colour: str = "") -> str:
        """See `Tail`; no line end splits a word."""
        return self._clear() + self._wrap.push(text, colour)

    def show(self, guess: str, status: str = "") -> str:
        """See `Tail`; of a guess higher than the screen it shows the beginning."""
        if (guess, status) == self._shown:
            return ""
        back, guessed = self._clear(), visible(guess)
        room = self._wrap.room_for(mark_guess(guessed, self._palette))
        placed = self._place(guessed, f" ({status})" if status else "")
        self._shown = (guess, status) if placed else ("", "")
        return back + room + placed

    def _clear(self) -> str:
        was_shown, self._shown = any(self._shown), ("", "")
        return RESTORE + WIPE if was_shown else ""

    def _place(self, guess: str, status: str) -> str:
        """The tail at its place. A guess is cut if the tail is too high: what scrolls away cannot be taken back."""
        laid = self._lay_out(guess, status)
        while laid.count("\n") >= self._size().lines - 1 and guess:
            guess = guess[: len(guess) * 7 // 8]
            laid = self._lay_out(guess, f"…{status}")
        if not laid or laid.count("\n") >= self._size().lines - 1:
            return ""
        below = laid.count("\n") + (not laid.isascii())  # a row more if a character is wider than known
        reserved = DOWN * below + UP.format(below) if below else ""
        return reserved + SAVE + laid

    def _lay_out(self, guess: str, status: str) -> str:
        ahead = self._wrap.fork()
        return ahead.push(mark_guess(guess, self._palette), "guess") + ahead.push(status, "dim")

    def _size(self) -> os.terminal_size:
        return size_of(self._out)


class DumbTail(Tail):
    """For terminals that cannot take text back: a guess stands between brackets and ends with a newline."""

    def __init__(self, palette: Palette, out: TextIO) -> None:
        super().__init__(palette)
        self._wrap = WordWrap(palette, lambda: line_width(out), takes_back=False)
        self._shown: str | None = None

    def put(self, text: str, colour: str = "") -> str:
        """See `Tail`; no line end splits a word."""
        return self._close() + self._wrap.push(text, colour)

    def show(self, guess: str, status: str = "") -> str:
        """See `Tail`; a guess that the target has partly verified does not grow any more."""
        if not status:
            return ""
        # Without the figure behind the comma, which changes
        opening = f"{self._wrap.finish()} [{status.partition(',')[0]}" if self._shown is None else ""
        before = self._shown or ""
        self._shown = guess if guess.startswith(before) else before
        opening += "; not confirmed: " if self._shown and not before else ""
        return opening + visible(self._shown[len(before) :])

    def _close(self) -> str:
        if self._shown is None:
            return ""
        self._shown = None
        self._wrap.restart()
        return "]\n"


def tail_of(out: TextIO, palette: Palette) -> Tail:
    """The kind of tail that `out` can show."""
    if not out.isatty():
        return Tail(palette)
    return (
        DumbTail(palette, out) if os.environ.get("TERM", "dumb") in ("dumb", "") else LiveTail(palette, out)
    )


def mark_guess(guess: str, palette: Palette) -> str:
    """A guess as it is shown: in brackets where no colour marks it."""
    return guess if palette.on or not guess else f"[{guess}]"
