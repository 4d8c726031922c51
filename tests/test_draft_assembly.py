"""A draft model made of shipped layers and the embedding of a fetched target: real GGUF, real ONNX Runtime."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch

from edge_client.drafters.onnx import OnnxFactory
from lab.training.distil.pruned import pruned
from lab.training.distil.shipped_graph import write_graph
from lab.training.distil.shipped_layers import write_layers
from lab.training.distil.shipping import pack
from lab.training.distil.target_model import load_target
from opensled.core.errors import NotFound, UnsupportedModel
from opensled.models import draft_pull, pull, store
from opensled.models.draft_assembly import assemble_gguf
from opensled.models.draft_pull import unpack
from opensled.models.gguf_file import read_head, read_metadata
from opensled.models.onnx_assembly import assemble_onnx, dequantize, quantize
from opensled.models.pull import PullConfig
from opensled.models.store import bundled_folder, fetched_folder, model_file
from tests.plain_llama import plain_llama
from verify_server.text.gguf_text import GgufText

TARGET = model_file("tiny", "*.gguf")
KEPT = (0, 2, 4)
LAYERS = "layers.gguf"  # not packed


@pytest.fixture(scope="module")
def shipped(tmp_path_factory) -> Path:
    """What is shipped of a draft with three of the five layers of `tiny`."""
    folder = tmp_path_factory.mktemp("shipped")
    draft = pruned(load_target(TARGET), KEPT)
    write_layers(draft, folder / LAYERS, "three layers")
    pack(folder / LAYERS, folder / draft_pull.LAYERS)
    write_graph(draft, GgufText(TARGET).tokenizer_json, folder)
    (folder / "LICENSE").write_text("a licence")
    (folder / "README.md").write_text("a card")
    return folder


@pytest.fixture(scope="module")
def assembled(shipped, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("assembled") / "draft.gguf"
    assemble_gguf(shipped / LAYERS, TARGET, path)
    return path


@pytest.fixture(scope="module")
def quantized_draft(assembled):
    """The draft in torch, with the weights of the assembled file."""
    return load_target(assembled)


IDS = list(range(40, 80))


def test_all_layers_and_the_embedding_make_the_target_again(tmp_path):
    target = load_target(TARGET)
    write_layers(pruned(target, range(5)), tmp_path / "layers.gguf", "all")
    assemble_gguf(tmp_path / "layers.gguf", TARGET, tmp_path / "whole.gguf")
    whole, head = read_head(tmp_path / "whole.gguf"), read_head(TARGET)
    assert whole.metadata == {**head.metadata, "general.name": "all", "general.license": "apache-2.0"}
    assert whole.tensors.keys() == head.tensors.keys()
    for name, info in head.tensors.items():
        ours, theirs = dequantize(tmp_path / "whole.gguf", whole.tensors[name]), dequantize(TARGET, info)
        assert np.abs(ours - theirs).max() <= (
            np.abs(theirs).max() / 7 if info.kind == 1 and "embd" not in name else 0
        )


def test_llama_cpp_computes_what_the_layers_do(assembled, quantized_draft):
    model = plain_llama(assembled, n_ctx=64, n_threads=1)
    model.eval(IDS)
    with torch.inference_mode():
        expected = quantized_draft(torch.tensor([IDS])).logits[0].numpy()
    found = model.scores[: len(IDS)]
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.999
    assert (found.argmax(-1) == expected.argmax(-1)).mean() > 0.9


def test_onnx_runtime_computes_what_the_layers_do(shipped, assembled, quantized_draft, tmp_path):
    assemble_onnx(shipped, assembled, tmp_path)
    session = ort.InferenceSession(str(tmp_path / "model.onnx"))
    feeds = {"input_ids": np.array([IDS]), "attention_mask": np.ones((1, len(IDS)), np.int64)}
    past = [each for each in session.get_inputs() if each.name.startswith("past")]
    assert len(past) == 2 * len(KEPT)
    config = quantized_draft.config
    empty = np.zeros((1, config.num_key_value_heads, 0, config.head_dim), np.float32)
    feeds |= {each.name: empty for each in past}
    found = session.run(["logits"], feeds)[0][0]
    with torch.inference_mode():
        expected = quantized_draft(torch.tensor([IDS])).logits[0].numpy()
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.97


def test_weights_are_rounded_to_the_nearest_of_sixteen_steps():
    weights = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    weights[2, 32:] = 0
    packed, scales = quantize(weights)
    assert packed.shape == (3, 2, 16) and scales.shape == (3, 2)
    quants = np.stack([packed & 15, packed >> 4], axis=-1).reshape(3, 2, 32).astype(np.float32) - 8
    error = np.abs(quants * scales[..., None] - weights.reshape(3, 2, 32))
    # The largest weight sets the steps; one of the other sign that is as large is cut by a step.
    assert (error <= np.abs(scales)[..., None] * 1.001).all() and np.median(
        error / (np.abs(scales[..., None]) + 1e-9)
    ) < 0.3


def test_layers_of_another_target_are_refused(shipped, tmp_path):
    other = bundled_folder() / "tiny-draft/tiny-draft-q8_0.gguf"
    with pytest.raises(
        UnsupportedModel, match="is not the target that the layers of this draft model were cut from"
    ):
        assemble_gguf(shipped / LAYERS, other, tmp_path / "wrong.gguf")


def test_packed_layers_come_out_as_they_were(shipped, tmp_path):
    unpack(shipped / draft_pull.LAYERS, tmp_path / LAYERS)
    assert (tmp_path / LAYERS).read_bytes() == (shipped / LAYERS).read_bytes()
    assert (shipped / draft_pull.LAYERS).stat().st_size < (shipped / LAYERS).stat().st_size


@pytest.mark.parametrize("damaged", [b"", b"GGUF", "half", "flipped"])
def test_damaged_packed_layers_are_refused(shipped, tmp_path, damaged):
    path, content = tmp_path / draft_pull.LAYERS, (shipped / draft_pull.LAYERS).read_bytes()
    half = len(content) // 2
    flipped = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
    path.write_bytes({"half": content[:half], "flipped": flipped}.get(damaged, damaged))
    with pytest.raises(UnsupportedModel, match=r"is damaged: .*; install OpenSLED again"):
        unpack(path, tmp_path / LAYERS)
    path.unlink()
    with pytest.raises(NotFound, match=r"cannot be read: .*; install OpenSLED again"):
        unpack(path, tmp_path / LAYERS)


# By its name


@pytest.fixture
def pullable(shipped, tmp_path, monkeypatch):
    """`smollm2` is the tiny target, fetched already; its draft is the one with three layers."""
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(draft_pull, "shipped_layers", lambda name: shipped)
    folder = fetched_folder("smollm2")
    folder.mkdir(parents=True)
    shutil.copy(TARGET, folder)
    model = replace(store.FETCHABLE["smollm2"], member=f"weights/{TARGET.name}")
    monkeypatch.setitem(store.FETCHABLE, "smollm2", model)
    return shipped


def test_pull_makes_the_draft_of_the_target(pullable, capsys):
    assert pull.pull(PullConfig("smollm2", json=True)) == 0
    target, draft = json.loads(capsys.readouterr().out)
    assert not target["fetched"] and draft == {
        "name": "smollm2-draft",
        "path": str(fetched_folder("smollm2-draft")),
        "fetched": True,
    }
    assert "smollm2-draft" in store.known_models()
    assert model_file("smollm2-draft", "*.gguf").name == "smollm2-draft.Q4_1.gguf"
    assert {"LICENSE", "README.md"} <= {path.name for path in fetched_folder("smollm2-draft").iterdir()}
    pull.pull(PullConfig("smollm2"))
    assert "smollm2-draft (Apache-2.0) was here already" in capsys.readouterr().out


def test_the_onnx_form_has_the_vocabulary_of_the_gguf_form(pullable, capsys):
    pull.pull(PullConfig("smollm2"))
    factory = OnnxFactory("smollm2-draft", 1)
    assert factory.pieces() == read_metadata(TARGET)["tokenizer.ggml.tokens"]
    drafter = factory.create()
    drafter.close()


def test_other_layers_than_before_make_the_draft_anew(pullable, capsys, monkeypatch, tmp_path):
    pull.pull(PullConfig("smollm2"))
    newer = tmp_path / "newer"
    shutil.copytree(pullable, newer)
    write_layers(pruned(load_target(TARGET), (1, 2, 3)), newer / LAYERS, "others")
    pack(newer / LAYERS, newer / draft_pull.LAYERS)
    monkeypatch.setattr(draft_pull, "shipped_layers", lambda name: newer)
    capsys.readouterr()
    pull.pull(PullConfig("smollm2"))
    assert "smollm2-draft (Apache-2.0) is ready" in capsys.readouterr().out
    assert read_metadata(model_file("smollm2-draft", "*.gguf"))["general.name"] == "others"


def test_a_draft_that_was_not_made_is_offered_if_its_layers_are_here(tmp_path, shipped, monkeypatch):
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(store, "shipped_layers", lambda name: tmp_path / "none")
    with pytest.raises(store.NotFound, match="no model 'smollm2-draft'; models here"):
        store.model_path("smollm2-draft")
    monkeypatch.setattr(store, "shipped_layers", lambda name: shipped)
    with pytest.raises(store.NotFound, match="no model 'smollm2-draft'; opensled pull smollm2 makes it"):
        store.model_path("smollm2-draft")
