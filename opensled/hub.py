"""Models of a hub, pinned at their first download: later ones are of the same commit, and have the same bytes.

The owner of a name on a hub can change what is behind it, and so can a thief of the owner's password. The first
download is trusted; its commit and the sha256 of each file are kept in this user's cache.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from opensled.errors import ModelError
from opensled.files import write_whole
from opensled.store import cache_folder

CHUNK = 1 << 20  # bytes read at once
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Seen:
    """A file as it was when its digest was computed."""

    sha256: str  # hex
    bytes: int
    changed: int  # time of its last change, in nanoseconds: only a file that changed since is read again


@dataclass(frozen=True)
class Pin:
    """What the name of a repository stands for."""

    commit: str
    files: dict[str, Seen]


def pinned(repository: str, fetch: Callable[[str | None], Path]) -> Path:
    """The folder that `fetch` gives for the commit of the first download; None asks for the newest.

    Its last part is the commit, as in the hub's own cache. Raises ModelError where a file has other bytes than then,
    and what `fetch` raises.
    """
    record = pin_file(repository)
    known = _read(record)
    folder = fetch(known.commit if known else None)
    if not COMMIT.fullmatch(folder.name):
        raise ModelError(f"the hub names no commit of {repository}; give a local model folder instead")
    files = {} if known is None else known.files
    seen = {
        file.name: _seen(file, files.get(file.name)) for file in sorted(folder.iterdir()) if file.is_file()
    }
    for name, now in seen.items():
        if name in files and files[name].sha256 != now.sha256:
            raise ModelError(
                f"{name} of {repository} at commit {folder.name} has the sha256 {now.sha256}; at its first download it "
                f"had {files[name].sha256}. If you trust the change, remove {record} and start again"
            )
    write_whole(record, json.dumps(asdict(Pin(folder.name, {**files, **seen})), indent=1).encode())
    return folder


def pin_file(repository: str) -> Path:
    """Where the commit and the digests of a repository are kept."""
    return cache_folder() / "hub" / f"{repository.replace('/', '--')}.json"


def _read(record: Path) -> Pin | None:
    try:
        document = json.loads(record.read_bytes())
        return Pin(document["commit"], {name: Seen(**facts) for name, facts in document["files"].items()})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{record} cannot be read: {error}; remove it to pin the model anew") from error


def _seen(file: Path, before: Seen | None) -> Seen:
    status = file.stat()
    if before and (before.bytes, before.changed) == (status.st_size, status.st_mtime_ns):
        return before
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    return Seen(digest.hexdigest(), status.st_size, status.st_mtime_ns)
