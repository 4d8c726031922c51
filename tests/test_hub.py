"""Models of a hub: the first download is pinned, later ones are the same; names and paths of models."""

import json
from pathlib import Path

import pytest

from opensled.core.errors import ModelError, NotFound
from opensled.models import store
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


def test_the_commit_of_the_first_download_stays(hub):
    assert fetch_pinned("some/weights", hub.fetch).name == COMMIT
    hub.newest = NEWER
    assert fetch_pinned("some/weights", hub.fetch).name == COMMIT
    assert hub.asked == [None, COMMIT]


def test_other_bytes_are_refused(hub):
    folder = fetch_pinned("some/weights", hub.fetch)
    hub.files["model.safetensors"] = b"other weights"
    with pytest.raises(ModelError, match=rf"model\.safetensors .* {COMMIT} .* remove .*some--weights\.json"):
        fetch_pinned("some/weights", hub.fetch)
    pin_file("some/weights").unlink()
    assert fetch_pinned("some/weights", hub.fetch) == folder


def test_files_that_others_left_out_are_added(hub):
    hub.files.pop("model.safetensors")
    fetch_pinned("some/weights", hub.fetch)
    hub.files["model.safetensors"] = b"weights"
    fetch_pinned("some/weights", hub.fetch)
    assert set(json.loads(pin_file("some/weights").read_text())["files"]) == set(FILES)


def test_a_file_that_did_not_change_is_not_read_again(hub, monkeypatch):
    folder = fetch_pinned("some/weights", hub.fetch)
    monkeypatch.setattr("hashlib.sha256", None)
    assert fetch_pinned("some/weights", lambda commit: folder) == folder


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"commit": 1, "files": 3}', '{"commit": "", "files": {"a": 1}}']
)
def test_a_record_that_cannot_be_read_is_named(hub, text):
    pin_file("some/weights").parent.mkdir(parents=True)
    pin_file("some/weights").write_text(text)
    with pytest.raises(ModelError, match=r"some--weights\.json cannot be read: .*; remove it"):
        fetch_pinned("some/weights", hub.fetch)
    assert hub.asked == []


def test_a_folder_without_a_commit_is_refused(hub, tmp_path):
    with pytest.raises(ModelError, match="names no commit"):
        fetch_pinned("some/weights", lambda commit: tmp_path)


# -- names and paths --------------------------------------------------------------------------------------------


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of an installed wheel: models inside the package, none beside it."""
    folder = tmp_path / "opensled/_models"
    for name in ("tiny", "tiny-draft"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}")
    (folder / "tiny-draft/draft-q8_0.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(store, "_FOLDERS", (folder, tmp_path / "models"))
    return folder


def test_the_checkout_brings_the_tiny_family():
    assert {"tiny", "tiny-hub", "tiny-draft"} <= set(store.known_models())
    for name in ("tiny", "tiny-hub"):
        assert store.model_path(name, "*.safetensors").is_dir()
        assert store.model_file(name, "*.gguf").is_file()
    assert store.model_file("tiny-draft", "*.gguf").is_file()
    assert store.model_file("tiny-draft", "*.onnx").is_file()


def test_paths_of_files_and_folders(wheel, tmp_path):
    file = wheel / "tiny-draft/draft-q8_0.gguf"
    assert store.model_path(str(tmp_path)) == tmp_path
    assert store.model_path(str(file), "*.gguf") == file
    assert store.model_file("tiny-draft", "*.gguf") == file
    assert store.model_file(str(file), "*.gguf") == file


@pytest.mark.parametrize(
    ("name", "must_have", "said"),
    [
        ("tine", None, r"no model 'tine'; did you mean tiny\? \(see: opensled models list\)"),
        ("smolm2", None, r"did you mean smollm2\?"),  # it may be fetched
        ("banana", None, "no model 'banana'; models here: tiny, tiny-draft.*opensled models list"),
        ("tiny", "*.gguf", r"has no \*.gguf"),
        ("", None, "no model ''"),
    ],
)
def test_missing_models_are_named_with_a_next_step(wheel, name, must_have, said):
    with pytest.raises(NotFound, match=said):
        store.model_path(name, must_have)


def test_several_files_are_no_choice(wheel):
    (wheel / "tiny-draft/other-q4_0.gguf").write_bytes(b"GGUF")
    with pytest.raises(NotFound, match=r"several \*.gguf.*draft-q8_0.gguf, other-q4_0.gguf"):
        store.model_file("tiny-draft", "*.gguf")


def test_nothing_bundled(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_FOLDERS", (tmp_path / "a", tmp_path / "b"))
    assert store.known_models() == []
    with pytest.raises(NotFound, match="models here: none"):
        store.model_path("tiny")


def test_an_existing_path_is_no_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert store.is_hub_id("models/mine")
    (tmp_path / "models/mine").mkdir(parents=True)
    assert not store.is_hub_id("models/mine")
