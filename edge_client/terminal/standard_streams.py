"""Standard streams in UTF-8, for every locale."""

from __future__ import annotations

import contextlib
import sys

from opensled.errors import InvalidRequest


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
