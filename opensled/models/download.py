"""Fetches one file of a hub; a broken connection costs nothing: what is there stays, and the rest is asked for."""

import errno
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

from opensled.core.errors import ModelError, Unreachable
from opensled.core.files import free_bytes, lock_alone, why_not_written
from opensled.models.hub_client import HubClient
from opensled.models.hub_listing import HubFile

CHUNK = 1 << 20  # bytes between two looks at the progress
ATTEMPTS = 5  # in a row without a byte
PAUSE = 1.0  # seconds before the second attempt without a byte; twice as long before each other one
SPARE = 64 << 20  # bytes that stay free on the disk


@dataclass(frozen=True)
class Source:
    """A repository at a commit."""

    hub: HubClient
    repository: str
    commit: str

    def part(self, folder: Path, file: HubFile) -> Path:
        """Where a file grows: hidden, and of this commit only."""
        path = folder / file.name
        return path.with_name(f".{path.name}.{self.commit[:12]}.part")


class _Content:
    """What is there of a file, and its digests so far."""

    def __init__(self, file: HubFile, sink: BinaryIO) -> None:
        self._file, self._sink = file, sink
        self.clear(keep=True)

    def clear(self, keep: bool = False) -> None:
        """Begin anew, with what `sink` holds if it is kept."""
        self.done, self._sha256 = 0, hashlib.sha256()
        self._blob = hashlib.sha1(f"blob {self._file.bytes}\0".encode(), usedforsecurity=False)
        self._sink.seek(0)
        while keep and (chunk := self._sink.read(CHUNK)):
            self._count(chunk)
        self._sink.truncate(self.done)

    def write(self, chunk: bytes) -> None:
        self._sink.write(chunk)
        self._count(chunk)

    def _count(self, chunk: bytes) -> None:
        self.done += len(chunk)
        self._sha256.update(chunk)
        self._blob.update(chunk)

    def digest(self) -> str:
        """Its sha256, hex. Raises ModelError if the hub announced another content."""
        found, file = self._sha256.hexdigest(), self._file
        if (file.sha256 or found) != found or (
            not file.sha256 and file.blob and file.blob != self._blob.hexdigest()
        ):
            raise ModelError(
                f"{file.name} arrived damaged: its sha256 is {found}, and the hub announced "
                f"{file.sha256 or file.blob}; run the same command again"
            )
        return found


def fetch(source: Source, file: HubFile, folder: Path, show: Callable[[int], None]) -> str:
    """Complete the part of `file` (`Source.part`); its sha256, hex. `show` hears how many of its bytes are there.

    Raises Unreachable if the connection breaks off again and again, ModelError for other bytes than the hub announced
    and for a full disk, and what `HubClient.open` raises.
    """
    part = source.part(folder, file)
    part.parent.mkdir(parents=True, exist_ok=True)
    part.touch()
    with part.open("r+b") as sink:
        content = _Content(file, sink)
        if content.done > file.bytes:
            content.clear()
        with keeping(folder, file.bytes - content.done):
            _complete(source, file, content, show)
        try:
            return content.digest()
        except ModelError:
            content.clear()
            raise


def _complete(source: Source, file: HubFile, content: _Content, show: Callable[[int], None]) -> None:
    attempts, pause = 0, PAUSE
    show(content.done)
    while content.done < file.bytes:
        before, why = content.done, _receive(source, file, content, show)
        attempts, pause = (0, PAUSE) if content.done > before else (attempts + 1, pause * 2)
        if attempts >= ATTEMPTS:
            raise Unreachable(
                f"the connection to {source.hub.endpoint} broke off at {content.done / 1e6:.0f} of "
                f"{file.bytes / 1e6:.0f} MB of {file.name} ({why}); run the same command again: it goes on from there"
            )
        if attempts:
            time.sleep(pause / 2)


def _receive(source: Source, file: HubFile, content: _Content, show: Callable[[int], None]) -> str:
    """One answer of the hub, as far as it comes; why it ended. Raises ModelError if it is longer than announced."""
    try:
        answer = source.hub.open(source.repository, source.commit, file.name, content.done)
    except Unreachable as error:
        if not content.done:
            raise
        return str(error)
    with answer:
        if answer.status != 206 and content.done:
            content.clear()  # it knows no ranges
        while True:
            try:
                chunk = answer.read(CHUNK)
            except (OSError, HTTPException) as error:
                return str(error) or type(error).__name__
            if content.done + len(chunk) > file.bytes:
                raise ModelError(
                    f"the hub sends more of {file.name} than the {file.bytes} bytes that it announced"
                )
            content.write(chunk)
            show(content.done)
            if not chunk:
                return "it ended early"


def require_room(folder: Path, needed: int) -> None:
    """Raises ModelError if the disk of `folder` has no room for `needed` bytes."""
    if needed > 0 and free_bytes(folder) < needed + SPARE:
        raise not_written(folder, OSError(errno.ENOSPC, ""), needed + SPARE)


def not_written(folder: Path, error: OSError, needed: int = 0) -> ModelError:
    """The error of files of `needed` bytes (0 = unknown) that `folder` does not take; `error`: of the system."""
    why = why_not_written(folder, error, needed)
    return ModelError(f"{folder} cannot be written: {why}, or name another folder in OPENSLED_CACHE_DIR")


@contextmanager
def keeping(folder: Path, needed: int = 0) -> Iterator[None]:
    """While inside, files of `needed` bytes are written into `folder`; an OSError becomes a ModelError that says so."""
    try:
        yield
    except OSError as error:
        raise not_written(folder, error, needed) from error


@contextmanager
def locked_folder(folder: Path, command: str = "opensled pull") -> Iterator[None]:
    """While inside, the folder is there and no other `command` writes into it. Raises ModelError."""
    with keeping(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            lock_alone(lock.fileno(), folder, command)
            yield
