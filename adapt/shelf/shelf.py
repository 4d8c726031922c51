"""Where a device keeps drafts that were handed out to it.

    current              HASH/SERIAL of the one that `--draft-model adapted` loads
    signer               who signed it
    HASH/                of one signer
    HASH/newest          highest serial that was ever taken: none below it is taken again
    HASH/SERIAL/         its files, `manifest.json` and `manifest.sig`
    HASH/.SHA256.part    of a file that is still being fetched

A draft is whole or not there. `current` changes last, as a whole; the draft before stays for `--previous`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from adapt.shelf.draft_manifest import DraftManifest, HandedFile, read_manifest
from adapt.shelf.signature import Signed, Signer
from opensled.core.errors import DraftRefused, NotFound, OpenSledError
from opensled.core.files import read_kept, write_whole
from opensled.models.hub import inspect_file

MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
DIGITS = 16  # of a serial in a folder's name, so that names sort like numbers


class Kept(NamedTuple):
    """A draft that is here."""

    draft: DraftManifest
    path: Path


class DraftShelf:
    """The drafts of one signer."""

    def __init__(self, root: Path, signer: Signer) -> None:
        self._root, self._signer = root, signer
        self.folder = root / hashlib.sha256(str(signer).encode()).hexdigest()[:32]

    @property
    def newest(self) -> int:
        """Highest serial that was ever taken; 0 = none."""
        try:
            return int(read_kept(self.folder / "newest") or 0)
        except ValueError:
            return 0

    def is_new(self, draft: DraftManifest, signed: Signed) -> bool:
        """False for the one that was taken last and is here. Raises DraftRefused for an older one, and for another one
        of its serial."""
        newest = self.newest
        if draft.serial > newest:
            return True
        kept = self._of(newest)
        if draft.serial < newest:
            raise DraftRefused(
                f"the server hands out serial {draft.serial}, but this device has had {newest}: an old draft is sent "
                "again, or the operator's store was lost. Nothing was replaced. The operator can go back with "
                f"opensled drafts rollback, or after a loss publish with opensled drafts publish --serial {newest + 1}"
            )
        if kept and (kept.path / MANIFEST).read_bytes() != signed.manifest:
            raise DraftRefused(
                f"two drafts have serial {newest}: the operator's stores differ; publish with --serial {newest + 1}"
            )
        return kept is None or not all(_holds(kept.path / file.name, file) for file in kept.draft.files)

    def part(self, file: HandedFile) -> Path:
        """Where a file grows. What a draft that is here has of it is taken over."""
        path = self.folder / f".{file.sha256}.part"
        if not path.exists():
            every = ((kept, own) for kept in self.list_drafts() for own in kept.draft.files)
            known = (kept.path / own.name for kept, own in every if own.sha256 == file.sha256)
            here = next((own for own in known if _holds(own, file)), None)
            if here:
                shutil.copyfile(here, path)
        return path

    def list_drafts(self) -> list[Kept]:
        """Oldest first; what is damaged is left out."""
        numbers = sorted(int(path.name) for path in self.folder.glob("[0-9]*") if path.name.isdigit())
        return [kept for kept in map(self._of, numbers) if kept]

    def _of(self, serial: int) -> Kept | None:
        path = self._path(serial)
        try:
            return Kept(read_manifest((path / MANIFEST).read_bytes()), path)
        except (OSError, OpenSledError):
            return None

    def _path(self, serial: int) -> Path:
        return self.folder / f"{serial:0{DIGITS}}"

    def put(self, draft: DraftManifest, signed: Signed) -> Kept:
        """All parts of `draft` are here and right: from now on it is the one. Raises OSError."""
        path, before = self._path(draft.serial), current(self._root)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".new-") as name:
            made = Path(name) / path.name
            made.mkdir()
            for file in draft.files:
                _place(self.part(file), made / file.name)
            (made / SIGNATURE).write_bytes(signed.signature)
            (made / MANIFEST).write_bytes(signed.manifest)
            shutil.rmtree(path, ignore_errors=True)  # left by a pull that was cut off here
            made.rename(path)
        write_whole(self.folder / "newest", str(draft.serial).encode())
        kept = Kept(draft, path)
        self.select(kept)
        self._tidy(keep={path, before} - {None})
        return kept

    def _tidy(self, keep: set[Path | None]) -> None:
        for each in self.list_drafts():
            if each.path not in keep:
                shutil.rmtree(each.path, ignore_errors=True)
        for part in self.folder.glob(".*.part"):
            part.unlink(missing_ok=True)

    def select(self, kept: Kept) -> None:
        """From now on `--draft-model adapted` loads this one."""
        write_whole(self._root / "signer", str(self._signer).encode())
        write_whole(self._root / "current", kept.path.relative_to(self._root).as_posix().encode())

    def latest(self) -> Kept | None:
        """The one that was taken last, current or not."""
        return self._of(self.newest)

    def back(self) -> Kept:
        """Select the draft before the current one; raises NotFound if there is none."""
        now = current(self._root)
        kept = self.list_drafts()
        earlier = [
            each for each in kept if now and each.path.parent == now.parent and each.path.name < now.name
        ]
        if not earlier:
            raise NotFound(
                "this device has no earlier draft; to draft without adapted drafts, leave out --draft-model adapted",
                "draft",
            )
        self.select(earlier[-1])
        return earlier[-1]


def _place(part: Path, path: Path) -> None:
    """Two files of a draft may be one part."""
    try:
        os.link(part, path)
    except OSError:  # not on every disk
        shutil.copyfile(part, path)


def _holds(path: Path, file: HandedFile) -> bool:
    """Whether `path` has the bytes of a file that a manifest names."""
    with contextlib.suppress(OSError):
        return inspect_file(path).sha256 == file.sha256
    return False


def current(root: Path) -> Path | None:
    """The folder of the draft that counts; None = there is none."""
    with contextlib.suppress(OSError, ValueError):
        return root / (root / "current").read_text("ascii")
    return None


def known_signer(root: Path) -> str:
    """The signer of the draft that counts; "" = none is known."""
    with contextlib.suppress(OSError, ValueError):
        return (root / "signer").read_text("utf-8").strip()
    return ""
