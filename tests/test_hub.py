"""Models of a hub: the first download is pinned by commit and digests, and later ones must be the same."""

import json
from pathlib import Path

import pytest

from opensled.core.errors import ModelError
from opensled.models.hub import fetch_pinned, pin_file

COMMIT, NEWER = "a" * 40, "b" * 40
FILES = {"config.json": b"{}", "model.safetensors": b"weights"}


def hub_cache(folder: Path, files: dict[str, bytes], commit: str = COMMIT) -> Path:
    """A snapshot as the hub's library keeps it: links to files with other names."""
    snapshot = folder / "models--some--weights/snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    for number, (name, content) in enumerate(files.items()):
        blob = folder / f"blob-{commit[0]}-{number}"
        blob.write_bytes(content)
        (snapshot / name).unlink(missing_ok=True)
        (snapshot / name).symlink_to(blob)
    return snapshot


class Hub:
    """Serves `files` as its newest commit, and remembers what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files, self.newest = folder, dict(FILES), COMMIT
        self.asked: list[str | None] = []

    def fetch(self, commit: str | None) -> Path:
        self.asked.append(commit)
        return hub_cache(self.folder, self.files, commit or self.newest)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    return Hub(tmp_path / "hub")


def test_the_commit_of_the_first_download_stays(hub: Hub) -> None:
    assert fetch_pinned("some/weights", hub.fetch).name == COMMIT
    hub.newest = NEWER
    assert fetch_pinned("some/weights", hub.fetch).name == COMMIT
    assert hub.asked == [None, COMMIT]


def test_other_bytes_are_refused(hub: Hub) -> None:
    folder = fetch_pinned("some/weights", hub.fetch)
    hub.files["model.safetensors"] = b"other weights"
    with pytest.raises(ModelError, match=rf"model\.safetensors .* {COMMIT} .* remove .*some--weights\.json"):
        fetch_pinned("some/weights", hub.fetch)
    pin_file("some/weights").unlink()
    assert fetch_pinned("some/weights", hub.fetch) == folder


def test_files_that_others_left_out_are_added(hub: Hub) -> None:
    hub.files.pop("model.safetensors")
    fetch_pinned("some/weights", hub.fetch)
    hub.files["model.safetensors"] = b"weights"
    fetch_pinned("some/weights", hub.fetch)
    assert set(json.loads(pin_file("some/weights").read_text())["files"]) == set(FILES)


def test_a_file_that_did_not_change_is_not_read_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch_pinned("some/weights", hub.fetch)
    monkeypatch.setattr("hashlib.sha256", None)
    assert fetch_pinned("some/weights", lambda commit: folder) == folder


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"commit": 1, "files": 3}', '{"commit": "", "files": {"a": 1}}']
)
def test_a_record_that_cannot_be_read_is_named(hub: Hub, text: str) -> None:
    pin_file("some/weights").parent.mkdir(parents=True)
    pin_file("some/weights").write_text(text)
    with pytest.raises(ModelError, match=r"some--weights\.json cannot be read: .*; remove it"):
        fetch_pinned("some/weights", hub.fetch)
    assert hub.asked == []


def test_a_folder_without_a_commit_is_refused(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="names no commit"):
        fetch_pinned("some/weights", lambda commit: tmp_path)
