"""Reading files that a user named: what goes wrong is an error that names the file and the cause."""

from __future__ import annotations

from pathlib import Path

from opensled.errors import NotFound, UsageError


def read_bytes(path: str | Path, what: str) -> bytes:
    """The bytes of `what` (such as "token file"); raises NotFound or UsageError."""
    try:
        return Path(path).expanduser().read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"{what} {path} does not exist") from error
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror}") from error


def read_ascii(path: str | Path, what: str) -> str:
    """Like `read_bytes`, for text that travels in headers."""
    try:
        return read_bytes(path, what).decode("ascii")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path} holds other than ASCII text") from error
