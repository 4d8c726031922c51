"""The few things of a terminal (ECMA-48, DEC VT100) that the product's output uses, so that tests read the screen."""

import io
import re

from edge_client.terminal.word_wrap import cells_of

_SEQUENCE = re.compile(r"\x1b(?:\[([?0-9;]*)([A-Za-z])|([78D=>]))")


class Output(io.StringIO):
    """A terminal as a program sees it, which keeps what it got."""

    def isatty(self) -> bool:
        return True


class Terminal:
    """Feed it output; `lines` are what can be read, what has scrolled away included."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self._columns, self._rows = columns, rows
        self._cells = [[" "] * columns for _ in range(rows)]
        self._gone: list[str] = []
        self._row = self._column = 0
        # The cursor waits behind the last column: the next character goes to the next row
        self._wraps = False
        self._saved = (0, 0, False)

    @property
    def lines(self) -> list[str]:
        lines = self._gone + [_text(cells) for cells in self._cells]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def feed(self, output: str) -> None:
        start = 0
        while start < len(output):
            found = _SEQUENCE.match(output, start)
            if found:
                self._obey(found)
                start = found.end()
            else:
                self._take(output[start])
                start += 1

    def _obey(self, found: re.Match[str]) -> None:
        parameters, command, short = found.groups()
        if short == "7":
            self._saved = self._row, self._column, self._wraps
        elif short == "8":
            self._row, self._column, self._wraps = self._saved
        elif short == "D":
            self._wraps = False
            self._down()
        elif command == "A":
            self._row, self._wraps = max(0, self._row - int(parameters or 1)), False
        elif command == "C":
            self._column, self._wraps = min(self._columns - 1, self._column + int(parameters or 1)), False
        elif command == "K":
            assert parameters in ("", "0")
            self._cells[self._row][self._column :] = [" "] * (self._columns - self._column)
        elif command == "J":
            assert parameters in ("", "0")
            self._cells[self._row][self._column :] = [" "] * (self._columns - self._column)
            for row in range(self._row + 1, self._rows):
                self._cells[row] = [" "] * self._columns

    def _take(self, character: str) -> None:
        if character == "\n":
            self._column, self._wraps = 0, False  # as a terminal that is no raw one prints it
            self._down()
        elif character == "\r":
            self._column, self._wraps = 0, False
        elif cells := cells_of(character):
            if self._wraps or self._column + cells > self._columns:
                self._column, self._wraps = 0, False
                self._down()
            self._cells[self._row][self._column : self._column + cells] = [character, ""][:cells]
            self._column += cells
            if self._column >= self._columns:
                self._column, self._wraps = self._columns - 1, True

    def _down(self) -> None:
        if self._row < self._rows - 1:
            self._row += 1
            return
        self._gone.append(_text(self._cells.pop(0)))
        self._cells.append([" "] * self._columns)


def _text(cells: list[str]) -> str:
    return "".join(cells).rstrip()
