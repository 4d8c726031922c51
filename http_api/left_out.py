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

_left_out: ContextVar[list[str] | None] = ContextVar("left_out", default=None)


@contextmanager
def leaving_out() -> Iterator[list[str]]:
    """Yields the paths that `require_held` leaves out while inside: short, and ASCII without control characters."""
    paths: list[str] = []
    token = _left_out.set(paths)
    try:
        yield paths
    finally:
        _left_out.reset(token)


def require_held(schema: dict[str, Any], where: str, strict: bool) -> None:
    """Keep the paths of what no grammar holds of the schema at `where`; with `strict` raise Unsupported for the first.

    Raises InvalidRequest for a schema that is too large.
    """
    for path, value in reduce(schema, where).left_out.items():
        shown = _make_printable(f"{where}.{path}")
        if strict:
            raise Unsupported(beyond(shown, value), shown)
        paths = _left_out.get()
        if paths is not None and len(paths) < MOST:
            paths.append(shown)


def make_header(header: str, found: Iterable[str]) -> dict[str, str]:
    """A header of these names, which are printable and short; none without names."""
    names = list(dict.fromkeys(found))
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
