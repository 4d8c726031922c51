"""What the grammar of a request leaves out of its schemas, for a header of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opensled.core.errors import Unsupported
from opensled.text.held_schema import beyond, reduce

HEADER = "OpenSLED-Not-In-Grammar"
LONGEST = 120  # characters of a path in it
MOST = 1000  # paths of one request that are kept
MAX_NAMES = 16  # in one header

CALLS_HEADER = "OpenSLED-Tool-Calls"  # where calls are not read

Notes = dict[str, list[str]]  # by header
_notes: ContextVar[Notes | None] = ContextVar("notes", default=None)


@contextmanager
def noting() -> Iterator[Notes]:
    """Yields what `note` is told while inside."""
    notes: Notes = {}
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def note(header: str, text: str) -> None:
    """Keep a text, short and ASCII without control characters, for a header of the answer."""
    if (notes := _notes.get()) is not None and len(kept := notes.setdefault(header, [])) < MOST:
        kept.append(text)


def require_held(schema: dict[str, Any], where: str, strict: bool) -> None:
    """Keep the paths of what no grammar holds of the schema at `where`; with `strict` raise Unsupported for the first.

    Raises InvalidRequest for a schema that is too large.
    """
    for path, value in reduce(schema, where).left_out.items():
        shown = _make_printable(f"{where}.{path}")
        if strict:
            raise Unsupported(beyond(shown, value), shown)
        note(HEADER, shown)


def make_header(header: str, found: Iterable[str]) -> dict[str, str]:
    """A header of these names, which are printable and short; none without names. No header may end in a blank."""
    names = list(dict.fromkeys(name.strip() or "?" for name in found))
    more = [f"and {len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return {header: ", ".join(names[:MAX_NAMES] + more)} if names else {}


def name_coarse(headers: dict[str, str], tools: Sequence[str]) -> None:
    """Add to the header of an answer the tools whose arguments the server holds less closely than their schemas."""
    if tools:
        before = headers.get(HEADER)
        added = make_header(HEADER, [_make_printable(f"tools ({tool})") for tool in tools])[HEADER]
        headers[HEADER] = f"{before}, {added}" if before else added


def _make_printable(path: str) -> str:
    printable = "".join(letter if letter.isprintable() and letter != "," else "?" for letter in path)
    text = printable.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}...{text[3 - LONGEST // 2 :]}"
