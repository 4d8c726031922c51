"""What files say, read again when they change: a running server learns of them without a restart."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from opensled.core.errors import OpenSledError
from opensled.core.files import user_path

log = logging.getLogger(__name__)

Content = TypeVar("Content")
Stamp = tuple[tuple[int, int, int, int], ...]

CHECK_SECONDS = 1.0  # between two looks at the files; a look is one stat() of each


class Watched(Generic[Content]):
    """The content of some files. A change that cannot be read leaves the old content, and a warning in the log."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        read: Callable[[], Content],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the files; raises what `read` raises. `clock`: in seconds."""
        self._paths = tuple(user_path(path) for path in paths)
        self._read, self._clock = read, clock
        # Before the content: a change meanwhile is seen later
        self._looked, self._stamp = clock(), self._look()
        self.latest = read()  # as it was read last, without a look

    def current(self, at_once: bool = False) -> Content:
        """The content now, at most CHECK_SECONDS old; `at_once`: not old at all."""
        now = self._clock()
        if at_once or now >= self._looked + CHECK_SECONDS:
            self._looked = now
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                self._read_again()
        return self.latest

    def _read_again(self) -> None:
        names = " and ".join(path.name for path in self._paths)
        try:
            self.latest = self._read()
        except OpenSledError as error:
            log.warning(
                "%s changed and cannot be used, so what it said before still counts: %s", names, error
            )
        else:
            log.info("%s changed and was read again", names)

    def _look(self) -> Stamp:
        """The time of the last change of the inode is among it: an editor or a backup may set the other one."""
        found = []
        for path in self._paths:
            try:
                status = path.stat()
            except OSError:
                found.append((0, 0, 0, 0))
            else:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return tuple(found)
