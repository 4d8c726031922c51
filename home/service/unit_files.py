"""Files that an installation wrote, told from those of others by their first line: a seal over all that follows it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from opensled.core.errors import UsageError
from opensled.core.files import read_kept, write_whole

_SEAL = "# Written by `opensled service install`, which also changes and removes it. sha256="


def add_seal(text: str) -> str:
    """The text of a file below its seal."""
    return f"{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def read_ours(path: Path) -> str | None:
    """The text of a file that an installation wrote and nobody changed, without its seal; None without a file.

    Raises UsageError for a file of someone else.
    """
    if path.is_symlink():
        raise UsageError(
            f"{path} is a link that `opensled service install` did not make (systemctl mask?); {_REMEDY}"
        )
    try:
        if (kept := read_kept(path)) is None:
            return None
        whole = kept.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    seal, _, text = whole.partition("\n")
    if not seal.startswith(_SEAL):
        raise UsageError(f"{path} was not written by `opensled service install`; {_REMEDY}")
    if add_seal(text) != whole:
        raise UsageError(f"{path} was changed since `opensled service install` wrote it; {_REMEDY}")
    return text


_REMEDY = "move it away first (changes of your own belong into a drop-in: systemctl edit)"


def write(path: Path, text: str) -> bool:
    """Write a sealed file; returns whether it is another one than before."""
    if read_ours(path) == text:
        return False
    write_whole(path, add_seal(text).encode())
    return True


def delete(paths: Iterable[Path]) -> None:
    """Delete files, and the folders that are empty then."""
    for path in paths:
        path.unlink(missing_ok=True)
        for folder in (path.parent, path.parent.parent):  # of drop-ins, or of a user's units
            with suppress(OSError):  # it holds files of someone else
                folder.rmdir()
