"""What is left out of a request, for headers of the answer: fields that are not read, and what no grammar holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from opensled.core.errors import Unsupported
from opensled.text.held_schema import beyond, reduce

IGNORED_HEADER = "OpenSLED-Ignored"  # of an answer to a request with fields that were not read
HEADER = "OpenSLED-Not-In-Grammar"
CALLS_HEADER = "OpenSLED-Tool-Calls"  # where calls are not read
LONGEST, LONGEST_FIELD = 120, 80  # characters of a path, and of a field's
MOST = 1000  # of one request that are kept for a header; of unknown effect no more fields may come
MAX_NAMES = 16  # in one header


@dataclass
class LeftOut:
    """What one request had that nothing read, by header, each once; `any`: also fields of unknown effect may be."""

    any: bool = False
    notes: dict[str, dict[str, None]] = field(default_factory=dict)


_left_out: ContextVar[LeftOut | None] = ContextVar("left_out", default=None)


@contextmanager
def leaving_out(lenient: bool) -> Iterator[dict[str, dict[str, None]]]:
    """Yields what `note` is told while inside, by header; `lenient`: fields of unknown effect are left out, too."""
    left = LeftOut(lenient)
    token = _left_out.set(left)
    try:
        yield left.notes
    finally:
        _left_out.reset(token)


def note(header: str, text: str) -> None:
    """Keep a text, short and ASCII without control characters, for a header of the answer."""
    if (left := _left_out.get()) is not None and len(kept := left.notes.setdefault(header, {})) < MOST:
        kept[text] = None


def leave_out(path: str) -> None:
    """Keep the name of a field that is left out."""
    note(IGNORED_HEADER, field_name(path))


def ignores(path: str) -> bool:
    """Whether the field `path`, of unknown effect, is left out; its name is kept then."""
    left = _left_out.get()
    if left is None or not left.any or len(left.notes.get(IGNORED_HEADER, ())) >= MOST:
        return False
    leave_out(path)
    return True


def field_name(name: str) -> str:
    """A field's name of the client's making, fit for a message or a header: short, and without surprises."""
    return _ascii(name, "")[:LONGEST_FIELD]


def require_held(schema: dict[str, Any], where: str, strict: bool) -> None:
    """Keep the paths of what no grammar holds of the schema at `where`; with `strict` raise Unsupported for the first.

    Raises InvalidRequest for a schema that is too large.
    """
    for path, value in reduce(schema, where).left_out.items():
        shown = _make_printable(f"{where}.{path}")
        if strict:
            raise Unsupported(beyond(shown, value), shown)
        note(HEADER, shown)


def listed(found: Iterable[str]) -> str:
    """The value of a header with these names, which are printable and short. No header may end in a blank."""
    names = list(dict.fromkeys(name.strip() or "?" for name in found))
    more = [f"and {len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return ", ".join(names[:MAX_NAMES] + more)


def name_coarse(headers: dict[str, str], tools: Sequence[str]) -> None:
    """Add to the header of an answer the tools whose arguments the server holds less closely than their schemas."""
    if tools:
        before = [headers[HEADER]] if HEADER in headers else []
        headers[HEADER] = ", ".join([*before, listed(_make_printable(f"tools ({tool})") for tool in tools)])


def _make_printable(path: str) -> str:
    text = _ascii(path, ",")
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}...{text[3 - LONGEST // 2 :]}"


def _ascii(text: str, but: str) -> str:
    """Printable letters, others than `but`."""
    printable = "".join(letter if letter.isprintable() and letter not in but else "?" for letter in text)
    return printable.encode("ascii", "backslashreplace").decode()
