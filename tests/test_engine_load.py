"""What the torch engine refuses at load, and that its self-test fails closed on planted bugs."""

import io
import json
import re
import sys

import pytest
import torch
import transformers
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoConfig, AutoModelForCausalLM

from opensled.core.errors import NotFound, SelfTestFailed, Unreachable, UnsupportedModel, UsageError
from tests.tiny_models import folder as folder
from tests.tiny_models import random_model
from verify_server.engine.torch import guards, kv_memory, loading, sdpa
from verify_server.engine.torch.packing import Attend
from verify_server.engine.torch.torch_engine import load


@pytest.mark.parametrize(
    ("family", "changed", "reason"),
    [
        ("lfm2", {}, "conv"),
        ("mamba", {}, "linear_attention"),
        ("qwen3_5_text", {}, "linear_attention"),
        ("gpt_oss", {}, "sinks"),
        ("bloom", {}, "AttentionInterface"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}, "dynamic"),
    ],
)
def test_families_that_would_go_wrong_are_refused(family, changed, reason, tmp_path):
    for rope in changed.values():
        rope["original_max_position_embeddings"] = 128
    with pytest.raises(UnsupportedModel, match=reason):
        load(str(random_model(family, tmp_path, **changed)))


def test_longrope_is_served_within_its_short_regime_only(tmp_path):
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    rope["original_max_position_embeddings"] = 128
    random_model("phi3", tmp_path, rope_parameters=rope, original_max_position_embeddings=128)
    with pytest.raises(UnsupportedModel, match="context of at most 128"):
        load(str(tmp_path))
    assert load(str(tmp_path), context=128).info.context_length == 128


def test_a_window_the_layers_do_not_pass_on_is_refused(folder):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder("mistral")))
    guards.check_calls(model, [Attend(layer, 0.25, window=9) for layer in range(3)], 3)
    with pytest.raises(UnsupportedModel, match="window"):
        guards.check_calls(model, [Attend(layer, 0.25) for layer in range(3)], 3)
    with pytest.raises(UnsupportedModel, match="layers"):
        guards.check_calls(model, [Attend(layer, 0.25, window=9) for layer in (0, 1, 1, 2)], 3)


# The self-test must catch what the guards cannot see


def without_window(group, window, folded, dtype):
    return MASK(group, None, folded, dtype)


def lost_rewrites(self, layer, slots, keys, values):
    stored = self._layers.get(layer)
    fresh = (
        torch.ones(len(slots), dtype=torch.bool)
        if stored is None
        else (stored[0][slots] == 0).all(-1).all(-1)
    )
    WRITE(self, layer, slots[fresh], keys[fresh], values[fresh])


MASK, GATHER, WRITE = sdpa._mask, kv_memory.KVMemory.gather, kv_memory.KVMemory.write
BUGS = [
    (sdpa, "_mask", without_window),
    (sdpa, "_mask", lambda *asked: MASK(*asked).roll(1, dims=-1)),  # one key too many
    (kv_memory.KVMemory, "gather", lambda self, layer, blocks: GATHER(self, layer, blocks.flip(0))),  # stale
    (kv_memory.KVMemory, "write", lost_rewrites),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug[2].__name__)
def test_the_self_test_fails_closed(bug, dtype, folder, monkeypatch):
    monkeypatch.setattr(*bug)
    with pytest.raises(SelfTestFailed):
        load(str(folder("mistral")), dtype=dtype)


def test_a_window_longer_than_the_self_test_is_tested_too(tmp_path, monkeypatch):
    random_model("mistral", tmp_path, sliding_window=400)
    monkeypatch.setattr(sdpa, "_mask", without_window)
    with pytest.raises(SelfTestFailed):
        load(str(tmp_path))


# Loading


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"device": "tpu"}, UsageError),
        ({"dtype": "int8"}, UsageError),
        ({"attention": "magic"}, UsageError),
        ({"numerics": "perfect"}, UsageError),
        ({"kv_tokens": -1}, UsageError),
        ({"model": "./no/such/folder"}, NotFound),
        ({"model": "not a hub id!"}, NotFound),
    ],
)
def test_bad_arguments_name_what_to_do(arguments, kind, folder):
    with pytest.raises(kind):
        load(**{"model": str(folder("llama")), **arguments})


def test_no_progress_bar_of_a_library_tears_the_terminal(folder, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    transformers.utils.logging.enable_progress_bar()
    loading.load_network(loading.find_weights(str(folder("llama"))), torch.device("cpu"), torch.float32)
    assert terminal.getvalue() == ""


def test_a_folder_without_safetensors_is_refused(tmp_path, folder):
    with pytest.raises(UnsupportedModel, match="is empty"):
        load(str(tmp_path))
    (tmp_path / "config.json").write_text((folder("llama") / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UnsupportedModel, match="save_pretrained"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    "stated",
    [
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        {"compression_config": {"quant_method": "compressed-tensors"}},
        {"quantization_config": {}},
    ],
)
def test_quantized_weights_are_refused_unread_with_the_way(stated, tmp_path, monkeypatch):
    model = random_model("llama", tmp_path)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **stated}))
    monkeypatch.setattr(loading, "_from_safetensors", pytest.fail)
    [about] = stated.values()
    method = about.get("quant_method", "by a method that its config.json does not name")
    with pytest.raises(UnsupportedModel, match=re.escape(f"quantized weights ({method})")) as refused:
        load(str(model), "cpu")
    assert "use --engine vllm, or a GGUF file" in str(refused.value)


def test_a_config_without_a_quantization_is_none(tmp_path):
    model = random_model("llama", tmp_path, quantization_config=None)
    assert load(str(model), "cpu", "float32", 160, numerics="fast").info.runtime == "torch"


def test_a_hub_out_of_reach_is_unreachable(monkeypatch):
    def offline(*args: object, **kwargs: object) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(loading, "snapshot_download", offline)
    with pytest.raises(Unreachable, match="local model folder"):
        load("someone/some-model")


@pytest.mark.parametrize(
    ("stored", "feature", "chosen"),
    [
        ("bfloat16", "avx512_bf16", "bfloat16"),
        ("bfloat16", "avx2", "float32"),
        ("float32", "amx_bf16", "float32"),
    ],
)
def test_auto_takes_bfloat16_where_it_is_fast_and_loses_nothing(
    stored, feature, chosen, tmp_path, monkeypatch
):
    random_model("llama", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, stored))
    model.save_pretrained(tmp_path)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {feature: True})
    info = load(str(tmp_path)).info
    assert (info.dtype, info.numerics) == (chosen, "exact")
