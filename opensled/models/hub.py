"""Models of a hub, pinned at their first download: later ones are of the same commit, and have the same bytes.

The owner of a name on a hub can change what is behind it, and so can a thief of the owner's password. The first
download is trusted; its commit and the sha256 of each file are kept in this user's cache.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from opensled.core.errors import ModelError
from opensled.core.files import read_kept, write_whole
from opensled.models.hub_listing import COMMIT
from opensled.models.store import cache_folder

CHUNK = 1 << 20  # bytes read at once


@dataclass(frozen=True)
class Seen:
    """A file as it was when its digest was computed."""

    sha256: str  # hex
    bytes: int
    changed: int  # time of its last change, in nanoseconds: only a file that changed since is read again

    def is_at(self, file: Path) -> bool:
        """Whether the file is there, with the same bytes."""
        return file.is_file() and inspect_file(file, self).sha256 == self.sha256


@dataclass(frozen=True)
class Pin:
    """What the name of a repository stands for."""

    commit: str
    files: dict[str, Seen]


def fetch_pinned(repository: str, fetch: Callable[[str | None], Path]) -> Path:
    """The folder that `fetch` gives for the commit of the first download; None asks for the newest.

    Its last part is the commit, as in the hub's own cache. Raises ModelError where a file has other bytes than then,
    and what `fetch` raises.
    """
    known = read_pin(repository)
    folder = fetch(known.commit if known else None)
    if not COMMIT.fullmatch(folder.name):
        raise ModelError(f"the hub names no commit of {repository}; give a local model folder instead")
    files = {} if known is None else known.files
    found = {
        file.name: inspect_file(file, files.get(file.name))
        for file in sorted(folder.iterdir())
        if file.is_file()
    }
    pin = Pin(folder.name, files)
    for name, now in found.items():
        require_pinned(repository, pin, name, now.sha256)
    write_pin(repository, Pin(folder.name, {**files, **found}))
    return folder


def require_pinned(repository: str, pin: Pin, name: str, sha256: str) -> None:
    """Raises ModelError if a file had another digest at its first download."""
    if name in pin.files and pin.files[name].sha256 != sha256:
        raise ModelError(
            f"{name} of {repository} at commit {pin.commit} has the sha256 {sha256}; at its first download it "
            f"had {pin.files[name].sha256}. If you trust the change, remove {pin_file(repository)} and start again"
        )


def write_pin(repository: str, pin: Pin) -> None:
    write_whole(pin_file(repository), json.dumps(asdict(pin), indent=1).encode())


def pin_file(repository: str) -> Path:
    """Where the commit and the digests of a repository are kept."""
    return cache_folder() / "hub" / f"{repository.replace('/', '--')}.json"


def read_pin(repository: str) -> Pin | None:
    """None before the first download. Raises ModelError for a record that cannot be read."""
    record = pin_file(repository)
    try:
        if (kept := read_kept(record)) is None:
            return None
        document = json.loads(kept)
        return Pin(document["commit"], {name: Seen(**facts) for name, facts in document["files"].items()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{record} cannot be read: {error}; remove it to pin the model anew") from error


def inspect_file(file: Path, before: Seen | None = None) -> Seen:
    """A file as it is now; one that did not change since `before` is not read."""
    status = file.stat()
    if before and (before.bytes, before.changed) == (status.st_size, status.st_mtime_ns):
        return before
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    return Seen(digest.hexdigest(), status.st_size, status.st_mtime_ns)
