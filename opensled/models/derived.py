"""Models that are written once from a file of another form, and kept in this user's cache while that file is there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from opensled.core.files import write_whole
from opensled.models.download import keeping, require_room
from opensled.models.hub import Seen, inspect_file
from opensled.models.store import cache_folder

STALE_S = 3600  # an unfinished model as old as this belongs to no process any more


class DerivedModels:
    """Those of one form: files with a suffix, or folders."""

    def __init__(self, name: str, suffix: str = "", weights: str = "") -> None:
        """`name`: of their folder in the cache. `weights`: the file in a model that is a folder."""
        self._name, self._suffix, self._weights = name, suffix, weights

    @property
    def folder(self) -> Path:
        return cache_folder() / self._name

    def place(self, source: Path) -> Path:
        """Of what is written from `source`: of another one as soon as `source` is another file."""
        status = source.stat()
        key = f"{source.resolve()} {status.st_size} {status.st_mtime_ns}".encode()
        digest = hashlib.blake2b(key, digest_size=4).hexdigest()
        return self.folder / f"{source.stem}-{digest}{self._suffix}"

    def is_whole(self, place: Path) -> bool:
        """Whether the model is there, with the weights that were written."""
        record = self._record(place)
        return record is not None and record[1].is_at(place / self._weights)

    @contextmanager
    def part(self, source: Path, size: int) -> Iterator[Path]:
        """While inside, a path for a model of about `size` bytes; what is still there then is removed.

        Raises ModelError if there is no room for it.
        """
        part = self.folder / f".{source.stem}-{os.getpid()}.part"
        with keeping(self.folder, size):
            self.folder.mkdir(parents=True, exist_ok=True)
            require_room(self.folder, size)
        try:
            yield part
        finally:
            _remove(part)

    def keep(self, part: Path, source: Path, size: int) -> None:
        """Move a written model to its place, unless another process was faster. Raises ModelError."""
        place = self.place(source)
        if self.is_whole(place):
            return
        record = {"source": str(source.resolve()), "seen": asdict(inspect_file(part / self._weights))}
        with keeping(self.folder, size):
            write_whole(self._record_of(place), json.dumps(record).encode())
            _remove(place)
            part.replace(place)

    def sweep(self) -> None:
        """Remove models whose source is gone, or is another file now, and those that were never finished."""
        with contextlib.suppress(OSError):
            for record in self.folder.glob("*.json"):
                place = record.with_name(record.name.removesuffix(".json") + self._suffix)
                known = self._record(place)
                if known is None or not known[0].is_file() or self.place(known[0]) != place:
                    record.unlink(missing_ok=True)
                    _remove(place)
            for part in self.folder.glob(".*.part"):
                if time.time() - part.stat().st_mtime > STALE_S:
                    _remove(part)

    def _record_of(self, place: Path) -> Path:
        return place.with_name(place.name.removesuffix(self._suffix) + ".json")

    def _record(self, place: Path) -> tuple[Path, Seen] | None:
        """What a model was written from, and how its weights were then; None without a record that can be read."""
        try:
            found = json.loads(self._record_of(place).read_bytes())
            return Path(found["source"]), Seen(**found["seen"])
        except (OSError, ValueError, TypeError, KeyError):
            return None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
