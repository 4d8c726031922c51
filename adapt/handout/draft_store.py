"""The folder of drafts that are handed out: files by their sha256, and for each tenant the signed manifests.

    files/SHA256
    tenants/HASH/tenant            its name
    tenants/HASH/last              highest serial that was ever published
    tenants/HASH/SERIAL.signed     signature (64 bytes), then the manifest

A draft can repeat texts of its tenant, so only the owner may read the folder. The server only reads it; the
command line writes, a file before the manifest that names it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from adapt.shelf.draft_manifest import DraftManifest, HandedFile, read_manifest
from opensled.core.errors import DraftRefused, NotFound, OpenSledError, UsageError
from opensled.core.files import lock_alone, read_kept, write_whole
from opensled.wire.draft_codec import SIGNATURE_BYTES

KEPT = 8  # newest manifests of a tenant, with their files; chosen
CHUNK = 1 << 20  # bytes copied at once
DIGITS = 16  # of a serial in a file's name, so that names sort like numbers


class Published(NamedTuple):
    """A manifest of the store."""

    draft: DraftManifest
    manifest: bytes
    signature: bytes


class DraftStore:
    """One such folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = folder / "files"

    def make(self) -> None:
        """Make what is missing; raises UsageError."""
        try:
            for path in (self.folder, self._files, self.folder / "tenants"):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be used: {error.strerror}") from error
        self.require_closed()

    def require_closed(self) -> None:
        """Raises UsageError where other users could read it, or there is no such folder."""
        if not self.folder.is_dir():
            raise UsageError(f"{self.folder} is not a folder; opensled drafts publish --store makes it")
        if os.name == "posix" and self.folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"{self.folder} is open to other users; run: chmod 700 {self.folder}")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While inside, no other command writes. Raises ModelError, and UsageError where nothing can be written."""
        try:
            with (self.folder / ".lock").open("w") as lock:
                lock_alone(lock.fileno(), self.folder, "opensled drafts")
                yield
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be written: {error.strerror}") from error

    # -- what the server reads

    def newest(self, tenant: str) -> Published | None:
        """What is handed out to a tenant; raises OpenSledError where it cannot be read."""
        paths = self._manifests(self._of(tenant))
        return _read(paths[-1]) if paths else None

    def file(self, draft: DraftManifest, sha256: str) -> tuple[Path, int] | None:
        """Path and bytes of a file that `draft` names."""
        for each in draft.files:
            if each.sha256 == sha256:
                return self._files / sha256, each.bytes
        return None

    # -- what the command line does

    def history(self, tenant: str) -> list[Published]:
        """Oldest first."""
        return [_read(path) for path in self._manifests(self._of(tenant))]

    def tenants(self) -> list[str]:
        found = sorted(self.folder.glob("tenants/*/tenant"))
        return sorted(path.read_text() for path in found if self._manifests(path.parent))

    def next_serial(self, tenant: str) -> int:
        """Above all that were ever published for it, deleted ones included."""
        return int(read_kept(self._of(tenant) / "last") or 0) + 1

    def keep_file(self, path: Path, name: str) -> HandedFile:
        """Copy a file into the store."""
        digest, size = hashlib.sha256(), 0
        with (
            path.open("rb") as source,
            tempfile.NamedTemporaryFile(dir=self._files, prefix=".", delete=False) as sink,
        ):
            unfinished = Path(sink.name)  # made with mode 600
            try:
                while chunk := source.read(CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
                    sink.write(chunk)
                sink.flush()
                unfinished.replace(self._files / digest.hexdigest())
            finally:
                unfinished.unlink(missing_ok=True)
        return HandedFile(name, size, digest.hexdigest())

    def publish(self, draft: DraftManifest, manifest: bytes, signature: bytes) -> None:
        """From now on this is what the tenant gets; the oldest manifests beyond KEPT go."""
        folder = self._of(draft.tenant)
        folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(folder / "tenant", draft.tenant.encode(), private=True)
        write_whole(folder / "last", str(draft.serial).encode(), private=True)
        write_whole(folder / f"{draft.serial:0{DIGITS}}.signed", signature + manifest, private=True)
        for path in self._manifests(folder)[:-KEPT]:
            path.unlink()
        self.sweep()

    def delete(self, tenant: str) -> list[Published]:
        """Delete all drafts of a tenant; what there was. Its serials go on from where they were."""
        found = self.history(tenant)
        for path in self._manifests(self._of(tenant)):
            path.unlink()
        self.sweep()
        return found

    def sweep(self) -> None:
        """Remove files that no manifest names."""
        named = {
            file.sha256 for path in self.folder.glob("tenants/*/*.signed") for file in _read(path).draft.files
        }
        for path in self._files.iterdir():
            if path.name not in named:
                path.unlink(missing_ok=True)

    def _of(self, tenant: str) -> Path:
        return self.folder / "tenants" / hashlib.sha256(tenant.encode()).hexdigest()[:32]

    def _manifests(self, folder: Path) -> list[Path]:
        return sorted(folder.glob("*.signed"))


def _read(path: Path) -> Published:
    """Raises NotFound if it has just gone, OpenSledError if it is damaged."""
    content = read_kept(path)
    if content is None:
        raise NotFound(f"{path} has just been removed; try again", "draft")
    signature, manifest = content[:SIGNATURE_BYTES], content[SIGNATURE_BYTES:]
    try:
        return Published(read_manifest(manifest), manifest, signature)
    except DraftRefused as error:
        raise OpenSledError(f"{path} is damaged; remove it, and publish the draft again: {error}") from error
