"""What a killed gateway leaves behind: processes of the Ray that it had started, and Ray's folder.

A gateway holds a lock in that folder for as long as it lives, however it ends. A folder whose lock is free has lost its
gateway, and so have the processes that have files of it open.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

log = logging.getLogger(__name__)

PREFIX, LOCK = "opensled-", "gateway.lock"


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder for a Ray, locked while inside; then it is removed."""
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        unlocked = folder / f".{LOCK}"
        with unlocked.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            unlocked.rename(folder / LOCK)  # so it is locked from the moment it has its name
            yield folder


def end_leftovers() -> list[str]:
    """End what killed gateways of this user have left on this machine, and say so; the processes that it were."""
    ended = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with _lock_of_nobody(folder) as lock:
            if lock is not None:
                ended += [_end(process) for process in _using(folder)]
                shutil.rmtree(folder, ignore_errors=True)
    if ended:
        log.warning("ended what a killed gateway had left of its Ray: %s", ", ".join(ended))
    return ended


def _lock_of_nobody(folder: Path) -> contextlib.AbstractContextManager[IO[str] | None]:
    """The lock of a gateway of this user that has ended, held while inside; None of a folder that is no such one."""
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
        lock = opened.enter_context((folder / LOCK).open("r+"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock.fileno()).st_uid == os.geteuid():
            opened.pop_all()
            return lock
    return contextlib.nullcontext()


def _using(folder: Path) -> list[Any]:
    """The processes that have a file of it open: Ray replaces their command lines by titles."""
    import psutil  # Ray brings it along, and makes it known only when it is imported

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            has_open = any(Path(file.path).is_relative_to(folder) for file in process.open_files())
            if has_open and process.pid != os.getpid():  # we hold the lock
                found.append(process)
    return found


def _end(process: Any) -> str:
    """Its title and number."""
    import psutil

    title = str(process.pid)
    with contextlib.suppress(psutil.Error):
        title = f"{' '.join(process.cmdline()[:1]) or process.name()} (process {process.pid})"
        process.kill()
    return title
