"""Quantized weights: known by the config before they are read; loaded, or refused by name with what they need.

Run: pytest tests/test_quantized.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from opensled.errors import SelfTestFailed, UnsupportedModel
from tests.tiny_models import random_model
from verify_server.engine import loading, quantized, torch_engine
from verify_server.engine.base import Segment
from verify_server.engine.quantized import METHODS, Method, method_of, require

BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True}
WIDE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "head_dim": 32,
    "num_key_value_heads": 4,
}  # blocks of 128 fit
LARGEST = 448.0  # number of float8_e4m3fn


def folder_of(path: Path, **config: object) -> Path:
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return path


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        (BITSANDBYTES, "bitsandbytes_4bit"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes_8bit"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
    ],
)
def test_a_config_says_how_the_weights_are_quantized(stated: dict, name: str, tmp_path: Path) -> None:
    assert method_of(folder_of(tmp_path, quantization_config=stated)) is METHODS[name]
    assert method_of(folder_of(tmp_path, text_config={"quantization_config": stated})) is METHODS[name]
    assert method_of(folder_of(tmp_path, compression_config=stated)) is METHODS[name]


def test_what_is_not_quantized_is_none_of_them(tmp_path: Path) -> None:
    assert method_of(folder_of(tmp_path)) is None
    assert method_of(folder_of(tmp_path, quantization_config=None)) is None
    (tmp_path / "config.json").write_text("[1")
    assert method_of(tmp_path) is None
    assert method_of(tmp_path / "none") is None


@pytest.mark.parametrize("kind", ["hqq", "aqlm", "mxfp4", ""])
def test_other_kinds_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModel, match=f"is quantized by {kind or 'a method'}.* serves bitsandbytes in 4 bits"
    ):
        method_of(folder_of(tmp_path, quantization_config={"quant_method": kind}))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        quantized, "find_spec", lambda name: None if name in ("optimum", "gptqmodel") else True
    )
    with pytest.raises(
        UnsupportedModel, match="GPTQ need the packages optimum and gptqmodel: pip install optimum"
    ):
        require(METHODS["gptq"], "cuda", (9, 0))
    require(METHODS["bitsandbytes_4bit"], "cpu")


def test_a_device_that_does_not_suit_is_named() -> None:
    method = Method("X", (), ("cuda",), (8, 9))
    require(method, "cuda", (8, 9))
    for device, capability in (("cpu", (0, 0)), ("cuda", (8, 6))):
        with pytest.raises(
            UnsupportedModel, match=rf"X cannot be computed on {device} .*capability 8\.9 or later"
        ):
            require(method, device, capability)
    require(Method("Y", (), ("cuda",), widened=True), "cpu")


def test_what_is_refused_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("llama", tmp_path, quantization_config={"quant_method": "awq"})
    monkeypatch.setattr(quantized, "find_spec", lambda name: None)
    monkeypatch.setattr(loading, "_from_safetensors", pytest.fail)
    with pytest.raises(UnsupportedModel, match="AWQ need the packages gptqmodel and accelerate"):
        torch_engine.load(str(model), "cpu")


def narrowed(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (weight / scale).to(torch.float8_e4m3fn)


# What is stored of a weight, by the ending of its name, and the weight that it stands for.
Stored = tuple[dict[str, torch.Tensor], torch.Tensor]


def in_blocks(weight: torch.Tensor) -> Stored:
    """As DeepSeek publishes FP8: a scale for each block of 128 x 128."""
    rows, columns = (size // 128 for size in weight.shape)
    blocks = weight.view(rows, 128, columns, 128)
    scales = blocks.abs().amax((1, 3)) / LARGEST
    narrow = narrowed(blocks, scales[:, None, :, None])
    restored = narrow.float() * scales[:, None, :, None]
    return {"": narrow.view_as(weight), "_scale_inv": scales}, restored.view_as(weight)


def by_row(weight: torch.Tensor) -> Stored:
    """As compressed-tensors store FP8: a scale for each output."""
    scales = weight.abs().amax(1, keepdim=True) / LARGEST
    narrow = narrowed(weight, scales)
    return {"": narrow, "_scale": scales}, narrow.float() * scales


def stored(
    path: Path, quantize: Callable[[torch.Tensor], Stored], stated: dict[str, object]
) -> tuple[Path, Path]:
    """What a model in which all layers are quantized stands for, in float32, and that model."""
    plain, folder = random_model("llama", path / "plain", **WIDE), path / "quantized"
    weights, restored = {}, load_file(plain / "model.safetensors")
    for name, weight in restored.items():
        parts, restored[name] = quantize(weight) if "_proj" in name else ({"": weight}, weight)
        weights.update({f"{name}{ending}": part.contiguous() for ending, part in parts.items()})
    save_file(restored, plain / "model.safetensors", metadata={"format": "pt"})
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": stated}))
    return plain, folder


def difference(plain: Path, folder: Path) -> tuple[torch_engine.TorchEngine, float]:
    """The engine of the quantized model, and how far its logits are from those of the other, in their spread."""
    rows = []
    for path in (folder, plain):
        engine = torch_engine.load(str(path), "cpu", "float32", 160, numerics="fast")
        rows.append(engine.forward([Segment(tuple(range(3, 40)), 0, (1, 5, 2), 9)]).logits)
        if path == folder:
            made = engine
    return made, float((rows[0] - rows[1]).square().mean().sqrt() / rows[1].std())


def weight_bits(engine: torch_engine.TorchEngine) -> float:
    """On average, as the weights are loaded."""
    network = engine._model.network
    stored = sum(weight.numel() * weight.element_size() for weight in network.parameters())
    return 8 * stored / network.num_parameters()


def test_fp8_in_blocks_is_widened_on_a_processor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    engine, error = difference(*stored(tmp_path, in_blocks, stated))
    assert error < 1e-5 and weight_bits(engine) == 32
    assert "cpu does not compute in FP8 in blocks: weights are widened" in capsys.readouterr().err


@pytest.mark.long
def test_compressed_tensors_load_and_are_never_exact(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    ways = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**ways, "strategy": "channel", "dynamic": False},
        "input_activations": {**ways, "strategy": "token", "dynamic": True},
    }
    stated = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    plain, folder = stored(tmp_path, by_row, stated)
    _, error = difference(plain, folder)
    assert 0 < error < 0.4  # what enters a layer is rounded to 8 bits as well
    never_exact(folder)


@pytest.mark.long
@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes_load_and_are_never_exact(bits: int, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    plain, folder = random_model("llama", tmp_path / "plain", **WIDE), tmp_path / "quantized"
    config = BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=config, dtype=torch.float32, device_map={"": "cpu"}
    ).save_pretrained(folder)
    engine, error = difference(plain, folder)
    assert 0 < error < (1.2 if bits == 4 else 0.2)
    assert bits < weight_bits(engine) < bits + 2
    never_exact(folder)


def never_exact(folder: Path) -> None:
    assert torch_engine.load(str(folder), "cpu", "float32", 160).info.numerics == "fast"
    with pytest.raises(SelfTestFailed, match="use --numerics fast"):
        torch_engine.load(str(folder), "cpu", "float32", 160, numerics="exact")
