"""GGUF files into engine torch: its logits against llama.cpp's, by quantization type and by architecture."""

import dataclasses
import random
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from opensled.models.gguf_file import read_head
from tests.gguf_zoo import VOCABULARY, Zoo, llama_logits, quantize, write
from verify_server.engine.base import Segment
from verify_server.engine.torch import gguf_model, loading
from verify_server.engine.torch.kv_memory import KVMemory
from verify_server.engine.torch.packed_model import PackedModel
from verify_server.engine.torch.tested_model import FAST

TOKENS = tuple(random.Random(1).choices(range(1, VOCABULARY), k=40))
# Root mean square of the difference of two ways to compute the logits, in units of the logits' spread.
# The same weights in float32 on both sides: 2.2e-6 is the largest that was seen of 32 file types.
SAME_WEIGHTS = 1e-4
# llama.cpp multiplies quantized weights by activations that it rounds to 8 bits: 0.059 at most.
ROUNDED = 0.1
# Sums in another order: 3e-6. ggml looks Gemma's GELU up in a table of float16: 4.2e-4.
ARITHMETIC, TABULATED = 1e-4, 1e-3
WRONG = 0.5  # at least, of whatever is read wrongly

# Without an importance matrix.
FILE_TYPES = [
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L"),
    *("Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ3_S", "IQ3_M", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0"),
]
# With one; the quantizer computes tables for up to 20 s.
SMALL_TYPES = ["Q2_K_S", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS"]


def torch_logits(path: Path) -> np.ndarray:
    """After each of TOKENS, by the engine's own packed attention."""
    network = loading.load_network(loading.find_weights(str(path)), torch.device("cpu"), dtype=torch.float32)
    model = PackedModel(network, KVMemory(4), FAST["cpu"], "sdpa")
    logits, _ = model.run([Segment(TOKENS, 0, (2, 0, 3), len(TOKENS))])
    return logits.numpy()


def error(given: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.square(given - expected).mean()) / expected.std())


# Quantization types


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama in float32 whose rows k-quants can cut into blocks of 256."""
    zoo = Zoo(width=256, ffn=512, head=64, tied=False)
    return write(tmp_path_factory.mktemp("wide") / "wide.gguf", zoo)


def compare(wide: Path, folder: Path, kind: str, importance: bool = False) -> None:
    """With llama.cpp on the same file, and on a float32 file that llama.cpp dequantized it into."""
    path = quantize(wide, folder / "quantized.gguf", kind, importance)
    plain = quantize(path, folder / "plain.gguf", "F32")
    given = torch_logits(path)
    assert error(given, llama_logits(plain, TOKENS)) < SAME_WEIGHTS
    assert error(given, llama_logits(path, TOKENS)) < ROUNDED
    if kind != "F32":
        assert error(given, llama_logits(wide, TOKENS)) > 10 * SAME_WEIGHTS, "it was not quantized"


@pytest.mark.parametrize("kind", FILE_TYPES)
def test_a_file_type_gives_llama_cpps_logits(kind, wide, tmp_path):
    compare(wide, tmp_path, kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", SMALL_TYPES)
def test_a_file_type_that_needs_an_importance_matrix_does(kind, wide, tmp_path):
    compare(wide, tmp_path, kind, importance=True)


def _halves_swapped(stored: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """As if a block kept its even weights in the low nibbles."""
    values = dequantize(stored, kind)
    if kind != gguf.GGMLQuantizationType.Q4_0:
        return values
    return values.reshape(-1, 2, 16).swapaxes(1, 2).reshape(values.shape)


dequantize = gguf.dequantize


@pytest.mark.parametrize(
    ("place", "name", "wrong"),
    [
        (gguf_model, "_layout", lambda architecture, name, values, config: values),
        (gguf_model.gguf, "dequantize", _halves_swapped),
    ],
    ids=["rotary pairs", "nibbles"],
)
def test_what_is_read_wrongly_is_far_outside_the_bounds(place, name, wrong, wide, tmp_path, monkeypatch):
    path = quantize(wide, tmp_path / "quantized.gguf", "Q4_0")
    monkeypatch.setattr(place, name, wrong)
    assert error(torch_logits(path), llama_logits(path, TOKENS)) > WRONG


# Architectures

ROPE = {"rope.freq_base": 500.0}
GEMMA = Zoo(
    "gemma2",
    gains=("post_attention_norm", "post_ffw_norm"),
    keys={**ROPE, "attention.sliding_window": 12, "final_logit_softcapping": 5.0},
)
GEMMA2 = dataclasses.replace(GEMMA, keys={**GEMMA.keys, "attn_logit_softcapping": 3.0})
# The sixth sees everything
GEMMA3 = dataclasses.replace(GEMMA, architecture="gemma3", head_gains=True, layers=7)
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
ZOO = {
    "llama": Zoo(keys=ROPE),
    "llama, untied": Zoo(head=16, tied=False),
    "llama, attention biases": Zoo(biases=ATTENTION, keys=ROPE),
    "llama, all biases": Zoo(biases=(*ATTENTION, "ffn_gate", "ffn_up", "ffn_down"), keys=ROPE),
    "llama, RoPE factors": Zoo(factors=True, tied=False, keys=ROPE),
    "llama, linear RoPE": Zoo(keys={"rope.scaling.factor": 3.0}),
    "qwen2": Zoo("qwen2", biases=ATTENTION[:3], head=16, keys=ROPE),
    "qwen2, untied": Zoo("qwen2", biases=ATTENTION[:3], head=16, tied=False, keys=ROPE),
    "qwen3": Zoo("qwen3", head_gains=True, keys=ROPE),
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3, local RoPE": dataclasses.replace(GEMMA3, keys={**GEMMA3.keys, "rope.freq_base_swa": 50.0}),
    "gemma3, linear RoPE": dataclasses.replace(
        GEMMA3, keys={**GEMMA3.keys, "rope.scaling.type": "linear", "rope.scaling.factor": 3.0}
    ),
    "granite": Zoo(
        "granite",
        keys={
            **ROPE,
            "attention.scale": 0.3,
            "embedding_scale": 1.5,
            "residual_scale": 0.7,
            "logit_scale": 3.0,
        },
    ),
    "granite, plain attention": Zoo("granite", tied=False, keys={"logit_scale": 3.0}),
    "phi3": Zoo("phi3", fused=True, tied=False, head=16, keys=ROPE),
    "phi3, partly rotated": Zoo(
        "phi3", fused=True, width=128, head=32, keys={**ROPE, "rope.dimension_count": 24}
    ),
    "smollm3": Zoo("smollm3", layers=4, keys=ROPE),  # the fourth has no positions
}


@pytest.mark.parametrize("name", ZOO)
def test_an_architecture_gives_llama_cpps_logits(name, tmp_path):
    path = write(tmp_path / "model.gguf", ZOO[name])
    bound = TABULATED if name.startswith("gemma") else ARITHMETIC
    assert error(torch_logits(path), llama_logits(path, TOKENS)) < bound


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama", "rope.freq_base", 10_000.0),
        ("llama, linear RoPE", "rope.scaling.factor", 1.0),
        ("gemma2", "attention.sliding_window", 4096),
        ("gemma2", "attn_logit_softcapping", 50.0),
        ("gemma2", "final_logit_softcapping", 30.0),
        ("gemma3", "rope.freq_base", 10_000.0),
        ("gemma3", "attention.sliding_window", 4096),
        ("gemma3, local RoPE", "rope.freq_base_swa", 10_000.0),
        ("granite", "attention.scale", 0.2),
        ("granite", "embedding_scale", 1.0),
        ("granite", "residual_scale", 1.0),
        ("phi3, partly rotated", "rope.dimension_count", 32),
    ],
)
def test_each_key_moves_the_logits_far_beyond_the_bound(name, key, value, tmp_path):
    """Otherwise the test above could not see that it was left out."""
    path = write(tmp_path / "model.gguf", ZOO[name])
    other = dataclasses.replace(ZOO[name], keys={**ZOO[name].keys, key: value})
    assert error(torch_logits(write(tmp_path / "other.gguf", other)), torch_logits(path)) > 10 * TABULATED


def test_phi3s_window_is_kept_which_llama_cpp_leaves_out(tmp_path):
    """The model was trained with it, and transformers' Phi3 has it."""
    zoo = dataclasses.replace(ZOO["phi3"], keys={"attention.sliding_window": 12})
    path = write(tmp_path / "model.gguf", zoo)
    given, expected = torch_logits(path), llama_logits(path, TOKENS)
    assert error(given[:12], expected[:12]) < ARITHMETIC
    assert error(given[12:], expected[12:]) > WRONG


def test_the_head_of_a_file_is_what_gguf_reads(wide):
    read = gguf.GGUFReader(wide)
    expected = {
        tensor.name: (tuple(map(int, reversed(tensor.shape))), int(tensor.tensor_type), tensor.data_offset)
        for tensor in read.tensors
    }
    assert read_head(wide).tensors == expected
