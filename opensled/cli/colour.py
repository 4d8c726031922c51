"""Colours for terminals, and standard streams in UTF-8."""

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TextIO

from opensled.core.errors import InvalidRequest

# SGR parameters (ECMA-48): of the eight classic colours, which every terminal maps to its own readable shades.
CODES = {
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
    "bold": "1",
    "dim": "2",
    "guess": "2;4",  # dim and underlined
    "blue": "34",
}


@dataclass(frozen=True)
class Palette:
    """Colours text if `on`."""

    on: bool

    def __call__(self, text: str, colour: str) -> str:
        return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if self.on and colour and text else text


def palette(choice: str, stream: TextIO) -> Palette:
    """The palette for `--color choice` on `stream`; "auto" obeys no-color.org and TERM=dumb."""
    if choice != "auto":
        return Palette(choice == "always")
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Palette(stream.isatty() and not plain)


def use_utf8() -> None:
    """Set the standard streams to UTF-8; other bytes on input become lone surrogates, for `require_text`."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        with contextlib.suppress(AttributeError):  # a stream that a test or an embedder put in place
            stream.reconfigure(encoding="utf-8", errors=errors)  # type: ignore[union-attr]


def require_text(text: str, what: str) -> str:
    """`text` if it is valid Unicode; raises InvalidRequest, which names it as `what`, for lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"character {error.start + 1} of {what} is not valid UTF-8; nothing was sent", "prompt"
        ) from error
    return text
