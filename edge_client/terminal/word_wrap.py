"""Text that comes piece by piece, laid out on a terminal so that no line end splits a word.

A word is written as it comes. If its next piece does not fit on the line, the word is taken back and written on the
next line. A terminal that cannot take text back gets each word when it is complete.
"""

import copy
import re
import unicodedata
from collections.abc import Callable, Iterator

from opensled.cli.colour import Palette

TAB = 8  # columns between the tab stops of terminals
EMOJI = "\U0001f000"  # from here on characters are wide, or unknown and better taken for wide
NARROWEST = 2  # columns of the narrowest line: a wide character fits
_RUNS = re.compile(r"\n|[ \t]|[^\n \t]+")
_UNFINISHED = re.compile(r"[^\n \t]*\Z")


def cells_of(character: str) -> int:
    """Columns of a character on a terminal, as Unicode defines them (UAX 11)."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    wide = character >= EMOJI or unicodedata.east_asian_width(character) in "WF"
    return 2 if wide else 1


def cells(text: str) -> int:
    return sum(map(cells_of, text))


class WordWrap:
    """Where the next character stands, and the word that it may continue.

    `width` gives the columns of a line at present. The caller writes what the methods return, and nothing else
    except after `restart`.
    """

    def __init__(self, palette: Palette, width: Callable[[], int], takes_back: bool = True) -> None:
        self._palette, self._width, self._takes_back = palette, width, takes_back
        self._held = ("", "")  # a word to be continued, and its colour, where nothing can be taken back
        self.restart()

    def restart(self) -> None:
        """The next character stands at the beginning of a line."""
        self._column = 0
        self._start = 0  # column of the word in progress
        self._word: list[tuple[str, str]] = []  # its pieces with their colours

    def push(self, text: str, colour: str = "") -> str:
        """What to write for the next piece of the text."""
        if not self._takes_back:
            return self._push_whole_words(text, colour)
        return self._lay_out(text, colour)

    def finish(self) -> str:
        """What to write so that everything pushed is on the terminal."""
        (text, colour), self._held = self._held, ("", "")
        return self._lay_out(text, colour)

    def fork(self) -> "WordWrap":
        """For a text at the present place that is taken back later. It moves nothing that was written before."""
        ahead = copy.copy(self)
        ahead._word = []
        return ahead

    def room_for(self, text: str) -> str:
        """What to write so that the word in progress can be continued with the beginning of `text` on its line."""
        part = next(_parts(text), "")
        joins = part.strip() and not _is_wide(part)
        if self._word and joins and self._column + cells(part) > self._line:
            return self._moved_word()
        return ""

    @property
    def _line(self) -> int:
        return max(NARROWEST, self._width())

    def _push_whole_words(self, text: str, colour: str) -> str:
        text, self._held = self._held[0] + text, ("", "")
        unfinished = _UNFINISHED.search(text)
        end = unfinished.start() if unfinished else len(text)
        if cells(text[end:]) < self._line:
            text, self._held = text[:end], (text[end:], colour)
        return self._lay_out(text, colour)

    def _lay_out(self, text: str, colour: str) -> str:
        written, run = "", ""  # `run` has one colour and no control sequences
        for part in _parts(text):
            if _is_wide(part):  # a line may end before and after each such character
                self._word = []
            moved = self.room_for(part)
            if moved:
                written, run = written + self._colour(run, colour) + moved, ""
            run += self._place(part, colour)
        return written + self._colour(run, colour)

    def _colour(self, run: str, colour: str) -> str:
        return "\n".join(self._palette(line, colour) for line in run.split("\n"))

    def _place(self, part: str, colour: str) -> str:
        if part == "\n":
            self.restart()
            return part
        if part in " \t":
            return self._placed_blank(part)
        before = ""
        if not self._word:
            if self._column > 0 and self._column + cells(part) > self._line:
                before, self._column = "\n", 0
            self._start = self._column
        self._word = [*self._word, (part, colour)]
        text = self._fill(part)
        if "\n" in text:
            self._start, self._word = 0, [(text.rpartition("\n")[2], colour)]
        if _is_wide(part):
            self._word = []
        return before + text

    def _placed_blank(self, blank: str) -> str:
        """A blank at the end of a full line is dropped: the line end stands for it."""
        self._word = []
        if self._column >= self._line:
            return ""
        width = TAB - self._column % TAB if blank == "\t" else 1
        self._column = min(self._column + width, self._line)
        return blank

    def _fill(self, part: str) -> str:
        """`part` from the present column on; what is longer than a line goes on in the next one."""
        text = ""
        for character in part:
            width = cells_of(character)
            if self._column + width > self._line:
                text, self._column = text + "\n", 0
            text += character
            self._column += width
        return text

    def _moved_word(self) -> str:
        """Take back the word in progress, and write it on the next line. Nothing if it has its line for itself."""
        if self._start == 0:
            return ""
        back = f"\r\x1b[{self._start}C\x1b[K\n"
        self._start, self._column = 0, sum(cells(piece) for piece, _ in self._word)
        return back + "".join(self._palette(piece, colour) for piece, colour in self._word)


def _is_wide(part: str) -> bool:
    return cells_of(part[0]) == 2


def _parts(text: str) -> Iterator[str]:
    """Line ends, single blanks, single wide characters with what joins them, and words between these."""
    for run in _RUNS.findall(text):
        if run.isascii():
            yield run
        else:
            yield from _unbreakable(run)


def _unbreakable(run: str) -> list[str]:
    parts = [""]
    for character in run:
        width = cells_of(character)
        if width and parts[-1] and (width == 2 or _is_wide(parts[-1])):
            parts.append("")
        parts[-1] += character
    return parts
