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
    """A repository at a commit, and the folder in which its files grow."""

    hub: HubClient
    repository: str
    commit: str
    folder: Path

    def part(self, name: str) -> Path:
        """Where a file grows: hidden, and of this commit only."""
        path = self.folder / name
        return path.with_name(f".{path.name}.{self.commit[:12]}.part")

    def part_size(self, name: str) -> int:
        """How many bytes of a part are there."""
        part = self.part(name)
        return part.stat().st_size if part.is_file() else 0


def fetch(source: Source, file: HubFile, show: Callable[[int], None]) -> str:
    """Complete the part of `file` (`Source.part`); its sha256, hex. `show` hears how many of its bytes are there.

    Raises Unreachable if the connection breaks off again and again, ModelError for other bytes than the hub announced
    and for a full disk, and what `HubClient.open` raises.
    """
    part = source.part(file.name)
    with keeping(source.folder, (file.bytes or 0) - source.part_size(file.name)):
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("a+b") as sink:
            return _Content(source, file, sink, show).complete()


class _Content:
    """What is there of a file, and its digests so far."""

    def __init__(self, source: Source, file: HubFile, sink: BinaryIO, show: Callable[[int], None]) -> None:
        self._source, self._file, self._sink, self._show = source, file, sink, show
        self._size = file.bytes  # None until it is known: then an answer tells it, by its length or its end
        self._sink.seek(0)
        self._begin()
        while chunk := sink.read(CHUNK):
            self._count(chunk)
        if self._size is None or self.done > self._size:
            self.clear()

    def _begin(self) -> None:
        self.done, self._sha256 = 0, hashlib.sha256()

    def clear(self) -> None:
        """Begin anew."""
        self._sink.truncate(0)
        self._begin()

    def write(self, chunk: bytes) -> None:
        """Append to what is there."""
        self._sink.write(chunk)
        self._count(chunk)

    def _count(self, chunk: bytes) -> None:
        self.done += len(chunk)
        self._sha256.update(chunk)
        self._show(self.done)

    def complete(self) -> str:
        """Fetch what is missing; the sha256 of the file, hex. Raises as `fetch` does."""
        attempts, endpoint = 0, self._source.hub.endpoint
        while self._size is None or self.done < self._size:
            before, why = self.done, self._receive()
            attempts = 0 if self.done > before else attempts + 1
            if attempts >= ATTEMPTS:
                raise Unreachable(
                    f"the connection to {endpoint} broke off at {self.done / 1e6:.0f} of {(self._size or 0) / 1e6:.0f} "
                    f"MB of {self._file.name} ({why}); run the same command again to continue"
                )
            if attempts:
                time.sleep(PAUSE * 2 ** (attempts - 1))
        return self._digest()

    def _receive(self) -> str:
        """One answer of the hub, as far as it comes; why it ended. Raises ModelError if it is longer than announced."""
        source, file = self._source, self._file
        try:
            answer = source.hub.open(source.repository, source.commit, file.name, self.done)
        except Unreachable as error:
            if not self.done:
                raise
            return str(error)
        with answer:
            if answer.status != 206:
                self.clear()  # it knows no ranges
            elif not answer.headers.get("Content-Range", f"bytes {self.done}-").startswith(
                f"bytes {self.done}-"
            ):
                self.clear()
                return "it began at another byte"
            if self._size is None and answer.length is not None:
                self._size = self.done + answer.length
            while True:
                try:
                    chunk = answer.read(CHUNK)
                except (OSError, HTTPException) as error:
                    return str(error) or type(error).__name__
                if self.done + len(chunk) > min(file.most, self._size or file.most):
                    raise ModelError(f"the hub sends more of {file.name} than {file.most} bytes")
                self.write(chunk)
                if not chunk:
                    self._size = self.done if self._size is None else self._size
                    return "it ended early"

    def _digest(self) -> str:
        """Raises ModelError, and begins anew, if the hub announced another content."""
        found, file = self._sha256.hexdigest(), self._file
        announced = file.sha256 or file.blob
        if announced and announced != (found if file.sha256 else self._blob()):
            self.clear()
            raise ModelError(
                f"{file.name} arrived damaged: its sha256 is {found}, and the hub announced {announced}; run the same "
                "command again"
            )
        return found

    def _blob(self) -> str:
        """git's id of what is there: of a small file."""
        self._sink.seek(0)
        head = f"blob {self.done}\0".encode()
        return hashlib.sha1(head + self._sink.read(), usedforsecurity=False).hexdigest()


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
