"""Thoughts in a terminal: dim, or between brackets where nothing is coloured, and a blank line before the answer."""

from opensled.cli.colour import Palette

Piece = tuple[str, str]  # a text and its colour, "" = none
APART = "\n\n"


class Thoughts:
    """Sets the thoughts of one answer apart from its text."""

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
