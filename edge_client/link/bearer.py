"""The bearer token of a device, read again when its file changes: a new one counts without a restart."""

from __future__ import annotations

from pathlib import Path

from opensled.cli import paired
from opensled.core.errors import UsageError
from opensled.core.files import read_bytes, read_token
from opensled.process.watched_file import Watched


def watched_token(path: str) -> Watched[str]:
    """The token in a file, now and after changes. Raises UsageError or NotFound for a file it cannot use.

    The token of a pairing counts only as long as its authority is the one of the start: a device that was paired with
    another home meanwhile would give that home's token to this one's server.
    """
    authority = paired.authority_beside(path)
    began = _content(authority)

    def read() -> str:
        token = read_token(path)
        # After the token: a pairing writes the authority first.
        if _content(authority) != began:
            raise UsageError("this device was paired with another server meanwhile: restart it")
        return token

    return Watched([path, *([authority] if authority else [])], read)


def _content(path: Path | None) -> bytes:
    return read_bytes(path, "certificate file") if path else b""
