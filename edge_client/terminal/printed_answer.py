"""What `opensled generate` prints: an answer on standard output, a status on standard error; thoughts in a terminal."""

import sys

from edge_client.terminal.tail import tail_of
from opensled.cli.colour import Palette, palette
from opensled.core.printable import visible

Piece = tuple[str, str]  # a text and its colour, "" = none
APART = "\n\n"


class Thoughts:
    """Sets the thoughts of one answer apart from its text: dim, or between brackets where nothing is coloured."""

    def __init__(self, palette: Palette) -> None:
        self._brackets = ("", "") if palette.on else ("[", "]")
        self._open = False

    def apart(self, thoughts: list[Piece], text: list[Piece]) -> list[Piece]:
        """What a further piece of the answer shows; thoughts without a colour are dim."""
        opening, closing = self._brackets
        shown = [(thought, colour or "dim") for thought, colour in thoughts if thought]
        said = [piece for piece in text if piece[0]]
        if shown and not self._open:
            self._open = True
            shown.insert(0, (opening, ""))
        if said and self._open:
            self._open = False
            said.insert(0, (closing + APART, ""))
        return shown + said


class PrintedAnswer:
    """An answer as it comes. Both streams are often the same terminal, which then shows the status behind the text."""

    def __init__(self) -> None:
        colours = palette("auto", sys.stdout)
        self._text, self._thoughts = tail_of(sys.stdout, colours), Thoughts(colours)
        both = sys.stdout.isatty() and sys.stderr.isatty()
        self._status = self._text if both else tail_of(sys.stderr, palette("auto", sys.stderr))
        self._beside = sys.stdout if both else sys.stderr

    def write(self, text: str, thoughts: str = "") -> None:
        """A piece of the answer; a file or a pipe gets it as it is, and no thoughts."""
        if self._status is not self._text:
            self._tell(self._status.put(""))
        pieces = [(text, "")]
        if sys.stdout.isatty():
            shown = self._thoughts.apart([(thoughts, "")], pieces)
            pieces = [(visible(piece.replace("\r\n", "\n")), colour) for piece, colour in shown]
        for piece, colour in pieces:
            sys.stdout.write(self._text.put(piece, colour))
        sys.stdout.flush()

    def status(self, status: str) -> None:
        """Show what goes on instead of text; "" = nothing."""
        self._tell(self._status.show("", status))

    def _tell(self, text: str) -> None:
        if text:
            print(text, end="", file=self._beside, flush=True)
