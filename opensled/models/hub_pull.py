"""Fetches models of a hub into this user's cache: pinned at the first download, whole or not at all.

All files arrive beside their places, hidden, and move there together. A commit is on disk alone: files of an earlier
one stay only with the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from opensled.core.errors import ModelError, UnsupportedModel
from opensled.models.download import Source, fetch, locked_folder, require_room
from opensled.models.hub import Pin, Seen, read_pin, require_pinned, write_pin
from opensled.models.hub_client import HubClient
from opensled.models.hub_listing import CONFIG, INDEX, HubFile, Listing, Selection, select, without_strays
from opensled.models.hub_names import HubName
from opensled.models.model_kind import read_papers, why_papers
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
    for name, before in pin.files.items():
        path = pulled_folder(repository) / name
        if path.is_file() and not before.is_at(path):
            raise ModelError(
                f"{path} is not what was fetched: its sha256 changed; remove it, and pull {repository} again"
            )


class _Pull:
    """One pull of some files at one commit."""

    def __init__(self, hub: HubClient, listing: Listing, selection: Selection, pin: Pin | None) -> None:
        self.listing, self.selection, self.pin = listing, selection, pin
        self.repository = selection.name.repository
        self.folder = pulled_folder(self.repository)
        self.source = Source(hub, self.repository, listing.commit, self.folder)
        self.known = Pin(listing.commit, dict(self._same_bytes()))

    def _same_bytes(self) -> Iterator[tuple[str, Seen]]:
        """What was fetched of this commit, or with the same bytes of another one."""
        if self.pin is not None:
            for name, before in self.pin.files.items():
                file = self.listing.files.get(name)
                if self.pin.commit == self.listing.commit or (file and file.sha256 == before.sha256):
                    yield name, before

    def run(self) -> Pulled:
        with locked_folder(self.folder):
            files = self._named_by_index(self.selection.files)
            self._require_fit(files)
            for file in files:
                if file.sha256:
                    require_pinned(self.repository, self.known, file.name, file.sha256)
            missing = [file for file in files if not self._is_there(file.name)]
            require_room(
                self.folder, _bytes(missing) - sum(self.source.part_size(file.name) for file in missing)
            )
            self._tell(missing)
            if self.pin is None:  # a pull that goes on later is of the same commit
                write_pin(self.repository, self.known)
            self._keep(self._fetch(missing))
        path = pulled_path(self.selection.name)
        assert path is not None, "all of its files are there"
        return Pulled(str(self.selection.name), path, bool(missing))

    def _named_by_index(self, files: list[HubFile]) -> list[HubFile]:
        index = next((file for file in files if file.name == INDEX), None)
        if index is None:
            return files
        fetch(self.source, index, lambda done: None)
        return without_strays(files, self.source.part(INDEX).read_bytes())

    def _require_fit(self, files: list[HubFile]) -> None:
        """Raises UnsupportedModel by the small papers, before the weights are fetched."""
        for file in files:
            if file.name in (CONFIG, "adapter_config.json") and not self._is_there(file.name):
                fetch(self.source, file, lambda done: None)
        names = {file.name for file in files}
        if why := why_papers(self.repository, names, lambda name: read_papers(self.source.part(name))):
            raise UnsupportedModel(why)

    def _is_there(self, name: str) -> bool:
        return name in self.known.files and self.known.files[name].is_at(self.folder / name)

    def _tell(self, missing: list[HubFile]) -> None:
        name, others = self.selection.name, list(dict.fromkeys(self.selection.others))
        if others:
            kind = name.choice or "the safetensors"
            tell(
                f"taking {kind}; there are also {', '.join(others)}: opensled pull {name.repository}:{others[0]}"
            )
        if missing:
            size = f"{_bytes(missing) / 1e6:.0f} MB, " if _bytes(missing) else ""
            files = missing[0].name if len(missing) == 1 else f"{len(missing)} files"
            tell(
                f"fetching {name} from {self.source.hub.endpoint}: {files}, {size}"
                f"commit {self.listing.commit[:12]}"
            )

    def _fetch(self, missing: list[HubFile]) -> dict[str, str]:
        """The digests of what was missing; all of it lies in parts then."""
        digests: dict[str, str] = {}
        before = 0
        with ProgressBar("fetching", _bytes(missing)) as bar:
            for file in missing:
                digests[file.name] = fetch(self.source, file, partial(bar.show, before=before))
                require_pinned(self.repository, self.known, file.name, digests[file.name])
                before += self.source.part_size(file.name)
        return digests

    def _keep(self, digests: dict[str, str]) -> None:
        """Move the parts to their places, remove what is of another commit, and remember the digests."""
        before, found = self.pin or self.known, self.known.files
        for name in sorted(before.files.keys() - found.keys() - digests.keys()):
            (self.folder / name).unlink(missing_ok=True)
            tell(f"removed {name}, which is of commit {before.commit[:12]}")
        for name, digest in digests.items():
            path = self.folder / name
            self.source.part(name).replace(path)
            status = path.stat()
            found[name] = Seen(digest, status.st_size, status.st_mtime_ns)
        self.source.part(INDEX).unlink(missing_ok=True)
        write_pin(self.repository, self.known)


def _bytes(files: list[HubFile]) -> int:
    """As far as the hub tells."""
    return sum(file.bytes or 0 for file in files)
