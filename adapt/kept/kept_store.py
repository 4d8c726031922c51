"""Kept texts on disk: a folder for each tenant, named by a hash, that nobody but the server's user can read.

A file is a shard of lab/training/distil with one text. Deletion leaves a mark with its time, so that what a
running server still has in hand of an older sequence is not written afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opensled.core.errors import UsageError
from opensled.core.files import write_whole

GIVEN, ANSWER = 0, 2  # who wrote a token, as in lab/training/distil/self_text.py
NAME, MARK = "tenant", ".deleted"
PATTERN = re.compile(r"\d{17}-[0-9a-f]{8}\.npz")  # of a text: microseconds since 1970, and chance
FOLDER = re.compile(r"[0-9a-f]{32}")  # of a tenant
TOP = 32  # likeliest tokens that are kept at each position
UNKNOWN = "?"  # a tenant whose folder does not say whose it is
UNFINISHED_S = 60.0  # after which a file that was begun is one of a server that was killed
ATTEMPTS = 20  # to delete a folder in which a server may just be writing, and to write into such a one
# Texts of one tenant. Chosen: a disk gives the smallest file 4 KiB, so that these take the usual quota of 256 MB also
# where each has a few hundred bytes; and a look at that many takes a second.
MAX_TEXTS = 65_536
ROOM = 16  # a look makes room for 1/ROOM of the limits, so that the next one comes only after so much text


class KeptText(NamedTuple):
    """A text on its way to the disk."""

    tenant: str
    opened: float  # Unix time at which its sequence began
    ids: tuple[int, ...]  # the text from its beginning
    first: int  # tokens that the tenant gave; the target wrote the others
    top_ids: npt.NDArray[np.uint32]  # [written, TOP], likeliest first
    top_log_probs: npt.NDArray[np.float16]  # [written, TOP]


class HeldTexts(NamedTuple):
    """What is kept of one tenant."""

    tenant: str
    texts: int
    bytes: int
    oldest: float  # Unix times; 0 = there is none
    newest: float
    folder: str


class KeptStore:
    """The folder (made) and its rules."""

    def __init__(
        self, folder: Path, max_bytes: int = 0, seconds: float = 0.0, clock: Callable[[], float] = time.time
    ) -> None:
        """`max_bytes`: of one tenant; `seconds`: until a text is deleted; 0 = no such rule. `clock`: Unix time."""
        self.folder, self._most, self._seconds, self._clock = folder, max_bytes, seconds, clock
        # By folder, (bytes, texts) after the last look at it, and what was written since: there is no more
        self._known: dict[Path, tuple[int, int]] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def folder_of(self, tenant: str) -> Path:
        """Where the texts of a tenant are, or would be."""
        return self.folder / hashlib.sha256(tenant.encode()).hexdigest()[:32]

    def write(self, text: KeptText, vocabulary: str) -> bool:
        """Keep a text; `vocabulary`: fingerprint of the target's. False: it is larger than the quota, or older than a
        deletion. Raises OSError."""
        if self._deleted_since(text):
            return False
        content = _pack(text, vocabulary)
        if self._most and len(content) > self._most:
            return False
        folder = self.folder_of(text.tenant)
        path = folder / f"{int(self._clock() * 1e6):017}-{secrets.token_hex(4)}.npz"
        for left in reversed(range(ATTEMPTS)):
            try:
                _place(path, text.tenant, content)
                break
            except (FileNotFoundError, FileExistsError):  # its folder is just being deleted
                if self._deleted_since(text):
                    return False
                if not left:
                    raise
        deleted = self._deleted_since(text)  # meanwhile
        if deleted:
            path.unlink(missing_ok=True)
            self._expire(folder)
        else:
            self._grew(folder, len(content))
        return not deleted

    def expire(self) -> None:
        """Delete what is too old, of all tenants."""
        for folder in self._folders():
            self._expire(folder)

    def summarize(self) -> list[HeldTexts]:
        """By tenant."""
        return sorted(self._summarize(folder) for folder in self._folders())

    def delete(self, tenant: str) -> HeldTexts:
        """Delete all texts of a tenant; returns what there was. Raises UsageError if some cannot be deleted."""
        folder = self.folder_of(tenant)
        found = self._summarize(folder)._replace(tenant=tenant)
        write_whole(self._mark(folder), repr(self._clock()).encode(), private=True)
        for _ in range(ATTEMPTS):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                return found
        raise UsageError(f"{folder} cannot be deleted; run this as the user that the server runs as")

    def _folders(self) -> Iterator[Path]:
        return (
            path for path in sorted(self.folder.glob("*")) if FOLDER.fullmatch(path.name) and path.is_dir()
        )

    def _mark(self, folder: Path) -> Path:
        return folder.with_name(folder.name + MARK)

    def _deleted_since(self, text: KeptText) -> bool:
        try:
            return not text.opened > float(self._mark(self.folder_of(text.tenant)).read_text())
        except FileNotFoundError:
            return False
        except ValueError:  # a damaged mark still is one
            return True

    def _summarize(self, folder: Path) -> HeldTexts:
        files = _files(folder)
        times = [_time(path) for path, _ in files] or [0.0]
        total = sum(size for _, size in files)
        return HeldTexts(self._tenant(folder), len(files), total, min(times), max(times), str(folder))

    def _tenant(self, folder: Path) -> str:
        try:
            tenant = (folder / NAME).read_text(errors="replace")
        except OSError:
            return UNKNOWN
        return tenant if self.folder_of(tenant) == folder else UNKNOWN

    def _grew(self, folder: Path, size: int) -> None:
        """One more text of so many bytes is in a folder. Only one that may be too full is looked at: a look at many
        texts takes long, and a tenant decides how many there are."""
        known = self._known.get(folder)
        total, texts = (known[0] + size, known[1] + 1) if known else (0, 0)
        fits = (total <= self._most or not self._most) and texts <= MAX_TEXTS
        self._known[folder] = (total, texts) if known and fits else self._trim(folder)

    def _trim(self, folder: Path) -> tuple[int, int]:
        """Where there is too much, the oldest goes until the limits hold with room; (bytes, texts) that stay."""
        files = _files(folder)
        total, texts, share = sum(size for _, size in files), len(files), 1.0
        for path, size in files:
            if total <= (self._most or total) * share and texts <= MAX_TEXTS * share:
                break
            share = 1 - 1 / ROOM
            path.unlink(missing_ok=True)
            total, texts = total - size, texts - 1
        return total, texts

    def _expire(self, folder: Path) -> None:
        """What is too old goes, as the names tell; an empty folder as well."""
        _remove_unfinished(folder)
        texts = _texts(folder)
        old = [path for path in texts if self._seconds and _time(path) < self._clock() - self._seconds]
        for path in old:
            path.unlink(missing_ok=True)
        if len(old) == len(texts):
            self._known.pop(folder, None)
            shutil.rmtree(folder, ignore_errors=True)


def _place(path: Path, tenant: str, content: bytes) -> None:
    """Write a text into the folder of its tenant, which is made. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(path, content, private=True)
    # Last: the folder may be deleted, and made anew, while a text is written.
    if not (path.parent / NAME).exists():
        write_whole(path.parent / NAME, tenant.encode(), private=True)


def _files(folder: Path) -> list[tuple[Path, int]]:
    """With their sizes, oldest first; one that is deleted meanwhile is left out."""
    found = []
    for path in _texts(folder):
        with contextlib.suppress(FileNotFoundError):
            found.append((path, path.stat().st_size))
    return found


def _texts(folder: Path) -> list[Path]:
    """Oldest first."""
    return [path for path in _inside(folder) if PATTERN.fullmatch(path.name)]


def _inside(folder: Path) -> list[Path]:
    """Sorted; nothing, where the folder is deleted meanwhile. (`glob` may raise then.)"""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _remove_unfinished(folder: Path) -> None:
    """What `write_whole` leaves where a server is killed in it: neither quota nor age would ever reach it."""
    for path in _inside(folder):
        with contextlib.suppress(FileNotFoundError):
            if path.name.startswith(".") and path.stat().st_mtime < time.time() - UNFINISHED_S:
                path.unlink()


def _time(path: Path) -> float:
    """When a text was kept, by the file's name."""
    return int(path.name.partition("-")[0]) / 1e6


def _pack(text: KeptText, vocabulary: str) -> bytes:
    roles = np.full(len(text.ids), ANSWER, np.uint8)
    roles[: text.first] = GIVEN
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        kinds=np.array(["kept"]),
        lengths=np.array([len(text.ids)], np.int32),
        ids=np.array(text.ids, np.uint32),
        roles=roles,
        top_ids=text.top_ids,
        top_log_probs=text.top_log_probs,
        features=np.zeros((len(text.top_ids), 0), np.float16),
        vocabulary=np.array(vocabulary),
    )
    return buffer.getvalue()
