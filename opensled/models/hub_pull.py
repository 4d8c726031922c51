"""Fetches models of a hub into this user's cache: pinned at the first download, whole or not at all.

All files arrive beside their places, hidden, and move there together. A commit is on disk alone: files of an earlier
one stay only with the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from opensled.core.errors import ModelError
from opensled.models.download import Source, fetch, locked_folder, require_room
from opensled.models.hub import Pin, Seen, read_pin, require_pinned, seen, write_pin
from opensled.models.hub_client import HubClient
from opensled.models.hub_listing import (
    INDEX,
    MAX_TEXT,
    HubFile,
    Listing,
    Selection,
    require_bounded,
    select,
    without_strays,
)
from opensled.models.hub_names import HubName
from opensled.models.store import pulled_folder, pulled_path
from opensled.process.logs import tell
from opensled.process.progress_bar import ProgressBar


class Pulled(NamedTuple):
    """A model that is on this machine."""

    name: str  # with the quantization that was chosen
    path: Path  # of its file, or its folder
    fetched: bool  # whether anything was fetched now
    licence: str = ""


def pull_repository(name: HubName, revision: str = "") -> Pulled:
    """Fetch what `name` chooses of a repository, unless it is there.

    Without `revision` (a commit, branch or tag) it is of the commit of the first download. Raises NotFound,
    Unauthorized, Unreachable, Overloaded, ModelError, UsageError.
    """
    here = pulled_path(name)
    pin = read_pin(name.repository)
    if here is not None and pin is not None and not revision and _is_recorded(here, name.repository, pin):
        _require_unchanged(name.repository, pin)
        return Pulled(str(name), here, False)
    hub = HubClient()
    listing = hub.listing(name.repository, revision or (pin.commit if pin else ""))
    if pin and not revision and listing.commit != pin.commit:
        raise ModelError(
            f"{hub.endpoint} gives commit {listing.commit} of {name.repository}, and {pin.commit} was asked for"
        )
    return _Pull(hub, listing, select(listing, name), pin).run()


def _is_recorded(path: Path, repository: str, pin: Pin) -> bool:
    """Whether a model on this disk was fetched, and not put there by somebody."""
    return path.is_dir() or path.relative_to(pulled_folder(repository)).as_posix() in pin.files


def _require_unchanged(repository: str, pin: Pin) -> None:
    """Raises ModelError for a file on this disk that is not what was fetched."""
    folder = pulled_folder(repository)
    for name, before in pin.files.items():
        path = folder / name
        if path.is_file() and seen(path, before).sha256 != before.sha256:
            raise ModelError(
                f"{path} is not what was fetched: its sha256 changed; remove it, and pull {repository} again"
            )


@dataclass
class _Pull:
    """One pull of some files at one commit."""

    hub: HubClient
    listing: Listing
    selection: Selection
    pin: Pin | None

    @property
    def repository(self) -> str:
        return self.selection.name.repository

    @property
    def folder(self) -> Path:
        return pulled_folder(self.repository)

    def run(self) -> Pulled:
        source = Source(self.hub, self.repository, self.listing.commit)
        pin = self._same_commit()
        with locked_folder(self.folder):
            files = self._named_by_index(source, self.selection.files)
            missing = [file for file in files if not self._is_there(file, pin)]
            self._check(files, pin)
            here = sum(_size(source.part(self.folder, file)) for file in missing)
            require_room(self.folder, sum(file.bytes for file in missing) - here)
            self._tell(missing)
            if self.pin is None:  # a pull that goes on later is of the same commit
                write_pin(self.repository, Pin(self.listing.commit, {}))
            digests = self._fetch(source, missing, pin)
            self._keep(source, digests, pin)
        path = pulled_path(self.selection.name)
        assert path is not None, "all of its files are there"
        return Pulled(str(self.selection.name), path, bool(missing))

    def _same_commit(self) -> Pin:
        """What is known of this commit; of another one, the files that have the same bytes in both."""
        if self.pin is None:
            return Pin(self.listing.commit, {})
        if self.pin.commit == self.listing.commit:
            return self.pin
        files = self.listing.files
        same = {
            name: known
            for name, known in self.pin.files.items()
            if name in files and files[name].sha256 == known.sha256
        }
        return Pin(self.listing.commit, same)

    def _named_by_index(self, source: Source, files: list[HubFile]) -> list[HubFile]:
        index = next((file for file in files if file.name == INDEX), None)
        if index is None or index.bytes > MAX_TEXT:
            return files
        fetch(source, index, self.folder, lambda done: None)
        return without_strays(files, source.part(self.folder, index).read_bytes())

    def _is_there(self, file: HubFile, pin: Pin) -> bool:
        path, known = self.folder / file.name, pin.files.get(file.name)
        return known is not None and path.is_file() and seen(path, known).sha256 == known.sha256

    def _check(self, files: list[HubFile], pin: Pin) -> None:
        for file in files:
            require_bounded(file)
            if file.sha256:
                require_pinned(self.repository, pin, file.name, file.sha256)

    def _tell(self, missing: list[HubFile]) -> None:
        name, others = self.selection.name, list(dict.fromkeys(self.selection.others))
        if others:
            kind = name.choice or "the safetensors"
            tell(
                f"taking {kind}; there are also {', '.join(others)}: opensled pull {name.repository}:{others[0]}"
            )
        if missing:
            size, count = sum(file.bytes for file in missing) / 1e6, len(missing)
            files = missing[0].name if count == 1 else f"{count} files"
            tell(
                f"fetching {name} from {self.hub.endpoint}: {files}, {size:.0f} MB, commit {self.listing.commit[:12]}"
            )

    def _fetch(self, source: Source, missing: list[HubFile], pin: Pin) -> dict[str, str]:
        """The digests of what was missing; all of it lies in parts then."""
        digests: dict[str, str] = {}
        before = 0
        with ProgressBar("fetching", sum(file.bytes for file in missing)) as bar:
            for file in missing:
                digests[file.name] = fetch(source, file, self.folder, partial(bar.show, before=before))
                require_pinned(self.repository, pin, file.name, digests[file.name])
                before += file.bytes
        return digests

    def _keep(self, source: Source, digests: dict[str, str], pin: Pin) -> None:
        """Move the parts to their places, remove what is of another commit, and remember the digests."""
        before = self.pin or pin
        for name in sorted(before.files.keys() - pin.files.keys() - digests.keys()):
            (self.folder / name).unlink(missing_ok=True)
            tell(f"removed {name}, which is of commit {before.commit[:12]}")
        found = {}
        for name, digest in digests.items():
            path = self.folder / name
            source.part(self.folder, self.listing.files[name]).replace(path)
            status = path.stat()
            found[name] = Seen(digest, status.st_size, status.st_mtime_ns)
        source.part(self.folder, HubFile(INDEX, 0, "", "")).unlink(missing_ok=True)
        write_pin(self.repository, Pin(self.listing.commit, {**pin.files, **found}))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
