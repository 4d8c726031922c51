"""Layers with their weights in oneDNN's order: the products of plain layers, and the memory of one copy."""

import pytest
import torch
from torch import nn

from tests.tiny_models import random_model
from verify_server.engine.torch import loading, onednn_linear
from verify_server.engine.torch.onednn_linear import OneDNNLinear, reorder
from verify_server.engine.torch.selftest import attending_by
from verify_server.engine.torch.torch_engine import load

WITHOUT = "oneDNN has no kernels in bfloat16 for this processor"
supported = pytest.mark.skipif(not onednn_linear._is_supported(), reason=WITHOUT)


@pytest.fixture
def network(tmp_path):
    def loaded(dtype: torch.dtype):
        folder = random_model("qwen2", tmp_path, attention_bias=True, tie_word_embeddings=True)
        return loading.load_network(loading.find_weights(str(folder)), torch.device("cpu"), dtype)

    return loaded


def layers(network, kind):
    return [module for module in network.modules() if type(module) is kind]


def _logits(network, ids: torch.Tensor) -> torch.Tensor:
    with attending_by(network, "eager"):
        return network(input_ids=ids, use_cache=False).logits.float()


@supported
@torch.inference_mode()
@pytest.mark.parametrize("bias", [True, False])
def test_the_product_is_that_of_a_plain_layer(bias):
    torch.manual_seed(0)
    plain = nn.Linear(100, 60, bias=bias, dtype=torch.bfloat16)
    inputs = torch.randn(1, 7, 100).bfloat16()
    out = OneDNNLinear(plain)(inputs)
    exact = nn.functional.linear(
        inputs.double(), plain.weight.double(), plain.bias.double() if bias else None
    )
    assert out.shape == (1, 7, 60)
    assert torch.allclose(out.double(), exact, atol=0.01, rtol=2**-8)


@supported
@torch.inference_mode()
def test_a_network_computes_what_it_did_and_holds_its_weights_once(network):
    ids = torch.arange(3, 20)[None]
    one, other = network(torch.bfloat16), network(torch.bfloat16)
    reorder(other)
    assert not layers(other, nn.Linear)
    assert all(layer.weight.is_meta for layer in layers(other, OneDNNLinear))
    logits, expected = (_logits(each, ids) for each in (other, one))
    assert (logits - expected).abs().max() < 0.05 * expected.std()


@supported
def test_servers_in_bfloat16_have_them(tmp_path):
    engine = load(str(random_model("llama", tmp_path)), "cpu", "bfloat16", 64 * 16, max_rows=64)
    assert layers(engine._model.network, OneDNNLinear)


def test_other_dtypes_and_other_versions_of_torch_keep_plain_layers(network, monkeypatch):
    in_float32, in_bfloat16 = network(torch.float32), network(torch.bfloat16)
    reorder(in_float32)

    def missing(*_: object) -> None:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", missing)
    reorder(in_bfloat16)
    for each in (in_float32, in_bfloat16):
        assert layers(each, nn.Linear) and not layers(each, OneDNNLinear)
