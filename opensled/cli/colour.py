"""Colours for terminals, and standard streams in UTF-8."""

import contextlib
import os
import select
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from opensled.core.errors import InvalidRequest

INPUT_S = 4.0  # waited for standard input that is open but was not asked for; chosen
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


def require_utf8() -> None:
    """Begin this process anew in UTF-8 mode where the locale has another encoding (LC_ALL=C), for arguments, variables
    and names of files. Arguments that are no UTF-8 are in that of the locale: it stays."""
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1" or not sys.executable:
        return  # the variable: Python reads it not, and would begin anew for ever
    with contextlib.suppress(UnicodeDecodeError, OSError):
        b"\0".join(map(os.fsencode, sys.orig_argv)).decode()
        os.environ["PYTHONUTF8"] = "1"  # of its children, too
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def prepare_streams() -> None:
    """Set the standard streams to UTF-8; other bytes on input become lone surrogates, for `require_text`. One that is
    closed becomes an empty one: else the next file that is opened would take its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  for the whole process
        # One that an embedder put in place, or has read of
        with contextlib.suppress(AttributeError, OSError):
            getattr(sys, name).reconfigure(
                encoding="utf-8-sig" if mode == "r" else "utf-8",
                errors="surrogateescape" if mode == "r" else "replace",
            )


def input_comes(seconds: float = INPUT_S) -> bool:
    """Whether standard input is read without a wait: something has come within `seconds`, or its end. Scripts, ssh and
    agents leave it open and write nothing."""
    try:
        return bool(select.select([sys.stdin], [], [], seconds)[0])
    except (OSError, ValueError):  # no file of the system
        return True


def require_text(text: str, what: str) -> str:
    """`text` if it is valid Unicode; raises InvalidRequest, which names it as `what`, for lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"character {error.start + 1} of {what} is not valid UTF-8; nothing was sent", "prompt"
        ) from error
    return text
