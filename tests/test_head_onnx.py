"""A trained head as ONNX graphs: ONNX Runtime drafts from the same rows what torch does, for heads of any weights.

Run: pytest tests/test_head_onnx.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from edge_client.drafters.head import HeadFactory
from opensled.drafting.head_form import DRAFT, READ
from opensled_training.heads.onnx_form import write_onnx
from opensled_training.heads.window_attention import WindowAttention
from verify_server.heads import HEADS
from verify_server.heads.base import HeadShape
from verify_server.heads.head_file import HeadFile
from verify_server.heads.owl import OwlHead
from verify_server.heads.target_parts import TargetParts

TAPS = {"specformer": (0, 2, 3, 4), "ctc": (4,), "owl": (4,)}
ONE_PASS = ("specformer", "ctc")
IDS = np.arange(3, 103, dtype=np.int32)


def head_of(kind: str, markov: int = 0) -> HeadFile:
    torch.manual_seed(1)
    shape = HeadShape(kind, TAPS[kind], 64, 4, 2, 16, 128, 5, len(IDS), 1e4, markov)
    head = HEADS.get(kind)(shape).eval()
    if head.markov is not None:
        torch.nn.init.normal_(head.markov.towards)
    return HeadFile(Path(), head, IDS, "any", "of any", "")


def network_of(is_tied: bool) -> PreTrainedModel:
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        tie_word_embeddings=is_tied,
    )
    network = LlamaForCausalLM(config).eval()
    torch.nn.init.normal_(network.model.norm.weight)
    return network


@pytest.mark.parametrize("rows", [1, 7, 16, 40])
@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "apart"])
@pytest.mark.parametrize("kind", ONE_PASS)
def test_onnx_runtime_computes_the_same(tmp_path: Path, kind: str, is_tied: bool, rows: int) -> None:
    found, network = head_of(kind), network_of(is_tied)
    write_onnx(found, network, tmp_path)
    read, draft = (onnxruntime.InferenceSession(tmp_path / name) for name in (READ, DRAFT))
    hidden, positions = torch.randn(rows, len(TAPS[kind]), 64), torch.arange(rows) + 9
    inputs, keys, values = read.run(None, {"hidden": hidden.numpy(), "positions": positions.numpy()})
    given = {"inputs": inputs[-1:], "newest": np.array([7]), "position": positions[-1:].numpy()}
    [outputs] = draft.run(None, {**given, "keys": keys, "values": values})
    head, parts = found.head, TargetParts(network, torch.from_numpy(IDS.astype(np.int64)))
    with torch.inference_mode():
        context = head.read(hidden, positions)
        attend = WindowAttention(context, [rows], [torch.tensor([rows - 1])])
        newest = parts.embedded(torch.tensor([IDS[7]]))
        normed = parts.normed(head.draft(context.inputs[-1:], newest, positions[-1:], attend))
        logits = parts.logits(normed)
        expected = logits if kind == "specformer" else head.with_blank(logits, normed).log_softmax(-1)
    assert np.allclose(outputs, expected[0], atol=1e-4)
    given["newest"] += 1
    assert not np.allclose(draft.run(None, {**given, "keys": keys, "values": values})[0], outputs, atol=1e-3)


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "apart"])
def test_onnx_runtime_takes_the_same_steps(tmp_path: Path, is_tied: bool) -> None:
    found, network = head_of("owl"), network_of(is_tied)
    write_onnx(found, network, tmp_path)
    read, draft = (onnxruntime.InferenceSession(tmp_path / name) for name in (READ, DRAFT))
    assert [given.name for given in read.get_inputs()] == ["hidden"]
    hidden, tokens = torch.randn(1, 1, 64), (7, 0, 99, 7)
    state, cell = read.run(None, {"hidden": hidden.numpy()})
    head, parts = found.head, TargetParts(network, torch.from_numpy(IDS.astype(np.int64)))
    assert isinstance(head, OwlHead)
    with torch.inference_mode():
        inputs = head.read(hidden, torch.zeros(1)).inputs
        expected = parts.logits(
            parts.normed(head.along(inputs, parts.embedded(parts.draft_ids[list(tokens)])[None]))
        )
    for place, token in enumerate(tokens):
        given = {"state": state, "cell": cell, "newest": np.array([token])}
        outputs, state, cell = draft.run(None, given)
        assert np.allclose(outputs, expected[:, place], atol=1e-4)


def test_the_bias_between_neighbours_goes_along(tmp_path: Path) -> None:
    found = head_of("specformer", markov=3)
    parts = HeadFactory(str(write_onnx(found, network_of(True), tmp_path)))._parts
    ids = np.array([4, 0, 99])
    assert found.head.markov is not None
    assert np.allclose(parts.among([5, -1], ids), found.head.markov.among([5, -1], ids), atol=1e-6)
    assert not parts.among([-1], ids).any()
