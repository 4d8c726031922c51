"""GGUF files as folders for vLLM: the same weights, logits and ids, written once."""

import os
from pathlib import Path

import pytest
import torch

from opensled.core.errors import ModelError, NotFound, UnsupportedModel
from opensled.core.messages import ChatMessage
from opensled.models.store import model_path
from tests.tiny_gguf import source as source
from tests.tiny_gguf import stored as stored
from verify_server.engine.torch import loading
from verify_server.text.gguf_text import GgufText
from verify_server.text.hf_text import HFText
from vllm_plugin import model_folder
from vllm_plugin.model_folder import folder_of

TEXTS = ("Über façade, 2,048 of them <|end|>", "  two blanks\n\n\tand a tab ", "你好 😀")
IDS = torch.arange(5, 69)[None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of this user, and empty."""
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "folders"


def logits(model: Path) -> torch.Tensor:
    """Of engine torch's network in float32, after each of IDS."""
    network = loading.load_network(loading.find_weights(str(model)), torch.device("cpu"), torch.float32)
    network.set_attn_implementation("sdpa")
    with torch.inference_mode():
        return network(IDS, use_cache=False).logits


def test_the_same_logits_and_ids(source, cache, capsys):
    folder = folder_of(str(source))
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        folder.parent == cache and str(folder) in line and line.startswith("note: tiny-q8_0.gguf is written")
    )
    assert {"config.json", "model.safetensors", "tokenizer.json"} < {item.name for item in folder.iterdir()}
    expected = logits(source)
    assert torch.allclose(logits(folder), expected, rtol=0, atol=1e-4)
    assert (logits(model_path("tiny")) - expected).abs().max() > 1e-2, "it was not quantized"
    own, text = GgufText(source), HFText(folder)
    assert text.tokenizer_json == own.tokenizer_json and text.fingerprint == own.fingerprint
    assert text.eos_ids == own.eos_ids
    for said in TEXTS:
        assert text.encode(said) == own.encode(said)
        chat = [ChatMessage("user", said)]
        assert text.render(chat) == own.render(chat)


def test_both_templates_are_written(source, monkeypatch):
    kept = GgufText.__init__

    def with_tools(self: GgufText, path: Path) -> None:
        kept(self, path)
        self.tool_template = "{{ tools }}" + self.chat_template

    monkeypatch.setattr(GgufText, "__init__", with_tools)
    text = HFText(folder_of(str(source)))
    assert text.tool_template == "{{ tools }}" + text.chat_template


def test_it_is_written_once(source, capsys):
    folder = folder_of(str(source))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    assert folder_of(str(source)) == folder and capsys.readouterr().err == ""
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_a_damaged_folder_is_written_again(source):
    weights = folder_of(str(source)) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-64] + bytes(64))
    assert (folder_of(str(source)) / "model.safetensors").read_bytes() == whole


def test_two_servers_that_start_at_once(source, monkeypatch):
    write = model_folder._write_text
    first: list[Path] = []

    def overtaken(path: Path, folder: Path) -> None:
        write(path, folder)
        monkeypatch.setattr(model_folder, "_write_text", write)
        part = folder.rename(folder.with_name(".mine"))  # of another process, so by another name
        first.append(folder_of(str(source)))
        os.utime(first[0] / "config.json", ns=(7, 7))
        part.rename(folder)

    monkeypatch.setattr(model_folder, "_write_text", overtaken)
    assert [folder_of(str(source))] == first
    assert (first[0] / "config.json").stat().st_mtime_ns == 7, "a folder in use was replaced"


def test_it_goes_with_its_source(source, stored, cache):
    first = folder_of(str(source))
    (cache / ".other-7.part").mkdir()  # of a server that works on it
    (cache / ".other-8.part").mkdir()
    os.utime(cache / ".other-8.part", (1, 1))  # of one that was killed
    source.unlink()
    second = folder_of(str(stored))
    assert not first.exists()
    assert {item.name for item in cache.iterdir()} == {second.name, f"{second.name}.json", ".other-7.part"}


def test_what_is_a_folder_already(cache):
    tiny = model_path("tiny")
    assert folder_of("tiny") == folder_of(str(tiny)) == tiny
    assert not cache.exists()


def test_what_cannot_be_one(source, cache, monkeypatch):
    with pytest.raises(NotFound, match="no model 'tinny'; did you mean"):
        folder_of("tinny")
    with monkeypatch.context() as patch:
        patch.setattr(model_folder, "available_host_bytes", lambda: 1_000_000)
        with pytest.raises(
            ModelError, match=r"tiny-q8_0.gguf as a folder takes .* GB of memory; 0.0 GB are free: give"
        ):
            folder_of(str(source))
    with monkeypatch.context() as patch:
        patch.setattr("opensled.models.download.free_bytes", lambda folder: 1_000_000)
        with pytest.raises(ModelError, match="OPENSLED_CACHE_DIR"):
            folder_of(str(source))
    source.write_bytes(source.read_bytes()[:-5000])
    with pytest.raises(UnsupportedModel, match=r"tiny-q8_0.gguf ends in the middle of .*; download it again"):
        folder_of(str(source))
    assert list(cache.iterdir()) == []
