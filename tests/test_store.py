"""Names and paths of models, from a checkout and from a wheel's layout."""

from pathlib import Path

import pytest

from opensled.core.errors import NotFound
from opensled.models import store


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


def test_the_checkout_brings_the_tiny_family() -> None:
    assert {"tiny", "tiny-hub", "tiny-draft"} <= set(store.known_models())
    for name in ("tiny", "tiny-hub"):
        assert store.model_path(name, "*.safetensors").is_dir()
        assert store.model_file(name, "*.gguf").is_file()
    assert store.model_file("tiny-draft", "*.gguf").is_file()
    assert store.model_file("tiny-draft", "*.onnx").is_file()


def test_a_wheel_brings_them_inside_the_package(wheel: Path) -> None:
    assert store.known_models() == ["tiny", "tiny-draft"]
    assert store.model_path("tiny") == wheel / "tiny"


def test_paths_of_files_and_folders(wheel: Path, tmp_path: Path) -> None:
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
def test_missing_models_are_named_with_a_next_step(wheel: Path, name: str, must_have: str, said: str) -> None:
    with pytest.raises(NotFound, match=said):
        store.model_path(name, must_have)


def test_several_files_are_no_choice(wheel: Path) -> None:
    (wheel / "tiny-draft/other-q4_0.gguf").write_bytes(b"GGUF")
    with pytest.raises(NotFound, match=r"several \*.gguf.*draft-q8_0.gguf, other-q4_0.gguf"):
        store.model_file("tiny-draft", "*.gguf")


def test_nothing_bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_FOLDERS", (tmp_path / "a", tmp_path / "b"))
    assert store.known_models() == []
    with pytest.raises(NotFound, match="models here: none"):
        store.model_path("tiny")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen3-0.6B", True),
        ("tiny", False),
        ("/models/tiny", False),
        ("../models/tiny", False),
        ("./models", False),
        ("a/b/c", False),
    ],
)
def test_hub_ids(name: str, expected: bool) -> None:
    assert store.is_hub_id(name) is expected


def test_an_existing_path_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models/mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert not store.is_hub_id("models/mine")
