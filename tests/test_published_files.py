"""The files of a published head: what is damaged, contradicts itself or is not known is refused by its name.

Run: pytest tests/test_published_files.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from opensled.errors import NotFound, UnsupportedModel
from tests.published_folders import WEIGHTS, config_of, publish
from verify_server.heads.speculators_config import CONFIG, read_config
from verify_server.heads.speculators_file import load_published

TARGET = SimpleNamespace(vocab_size=61, hidden_size=16)
Json, Tensors = dict[str, Any], dict[str, Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return publish(tmp_path / "head", config_of(TARGET, 23, (0, 2, 4)))


def refused(folder: Path, *said: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        load_published(folder)
    for part in (str(folder), *said):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def with_layer(**values: Any) -> Callable[[Json], Any]:
    return lambda config: config["transformer_layer_config"].update(values)


def with_head(**values: Any) -> Callable[[Json], Any]:
    return lambda config: config.update(values)


def without(*names: str) -> Callable[[Json], Any]:
    return lambda config: [config["transformer_layer_config"].pop(name) for name in names]


OTHERS = ("peagle", "dflash", "dflash2", "dspark", "xpress", "mtp", "of tomorrow")
WRONG_CONFIGS: dict[str, tuple[Callable[[Json], Any], str]] = {
    **{kind: (with_head(speculators_model_type=kind), f"is of type {kind!r}") for kind in OTHERS},
    "a type that is no name": (with_head(speculators_model_type=7), "is of type '7'"),
    "no layer": (with_head(transformer_layer_config=None), "transformer_layer_config is no JSON object"),
    "a layer of another family": (with_layer(model_type="mamba"), "known are llama and qwen3"),
    "two layers": (with_layer(num_hidden_layers=2), "it has 2 layers"),
    "another activation": (with_layer(hidden_act="gelu"), "hidden_act 'gelu'"),
    "a sliding window": (with_layer(layer_types=["sliding_attention"]), "sliding window"),
    "a sliding window, said otherwise": (with_layer(use_sliding_window=True), "sliding window"),
    "no size": (without("hidden_size"), "it lacks 'hidden_size'"),
    "a size of text": (with_layer(hidden_size="16"), "hidden_size 16"),
    "a size that is true": (with_layer(intermediate_size=True), "intermediate_size True"),
    "a negative size": (with_layer(num_attention_heads=-4), "num_attention_heads -4"),
    "a size beyond all": (with_layer(intermediate_size=1 << 40), "intermediate_size"),
    "a context beyond all": (with_layer(max_position_embeddings=1 << 60), "max_position_embeddings"),
    "heads that do not divide": (with_layer(num_key_value_heads=3), "4 heads of 16 over 3"),
    "an odd head": (with_layer(head_dim=15), "heads of 15"),
    "a norm without a floor": (with_layer(rms_norm_eps=0), "rms_norm_eps 0"),
    "a norm with NaN": (with_layer(rms_norm_eps=float("nan")), "rms_norm_eps nan"),
    "a flag of text": (with_head(norm_before_residual="no"), "neither true nor false"),
    "two norms before fc": (with_head(norm_before_fc=True, fc_norm=True), "exclude each other"),
    "more ids than the target has": (with_head(draft_vocab_size=62), "drafts 62 ids of a vocabulary of 61"),
    "another width of the target": (with_head(target_hidden_size=32), "target_hidden_size 32"),
    "no hidden states": (with_head(eagle_aux_hidden_state_layer_ids=[]), "layer_ids []"),
    "a negative hidden state": (with_head(eagle_aux_hidden_state_layer_ids=[0, -1]), "layer_ids [0, -1]"),
    "hidden states of text": (with_head(eagle_aux_hidden_state_layer_ids="2"), "layer_ids 2"),
    "a hidden state twice": (with_head(eagle_aux_hidden_state_layer_ids=[2, 2, 4]), "names a layer twice"),
    "an unknown rotation": (with_layer(rope_scaling={"rope_type": "longrope"}), "a rotation 'longrope'"),
    "a rotation for each kind of layer": (
        with_layer(rope_parameters={"full_attention": {"rope_theta": 1e4}, "rope_type": []}),
        "a rotation '[]'",
    ),
    "a rotation of some of a head": (
        with_layer(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "a rotation with 'partial_rotary_factor'",
    ),
    "a rotation that is a name": (with_layer(rope_scaling="yarn"), "its rotation"),
    "a rotation without its factor": (with_layer(rope_scaling={"rope_type": "linear"}), "its rotation"),
    "a rotation by nothing": (with_layer(rope_scaling={"rope_type": "linear", "factor": 0}), "rotation"),
    "a rotation of text": (with_layer(rope_theta="fast"), "rope_theta fast"),
    "a base below zero": (with_layer(rope_theta=-1.0), "rope_theta -1"),
    "a base that is no number": (with_layer(rope_parameters={"rope_theta": float("nan")}), "rope_theta nan"),
}


@pytest.mark.parametrize("fault", WRONG_CONFIGS)
def test_a_config_that_is_not_understood(folder: Path, fault: str) -> None:
    plant, said = WRONG_CONFIGS[fault]
    config = json.loads((folder / CONFIG).read_text())
    plant(config)
    (folder / CONFIG).write_text(json.dumps(config))
    refused(folder, said)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '"eagle3"', "[" * 100_000, "\ud800".encode("utf-8", "surrogatepass")]
)
def test_a_config_that_is_none(folder: Path, text: str | bytes) -> None:
    (folder / CONFIG).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(folder, CONFIG)


def test_a_raw_head_is_told_how_to_be_converted(folder: Path) -> None:
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": 23}
    (folder / CONFIG).write_text(json.dumps(config))
    refused(
        folder,
        "names no speculators_model_type",
        f"speculators convert {folder} --algorithm eagle3 --verifier",
    )


def renamed(tensors: Tensors) -> None:
    """As raw EAGLE-3 files have it."""
    for name in [name for name in tensors if name.startswith("layers.0.")]:
        tensors[name.replace("layers.0.", "midlayer.")] = tensors.pop(name)


def put(name: str, tensor: Tensor) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: tensor})


def lost(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.pop(name)


def at(name: str, place: int, value: float) -> Callable[[Tensors], Any]:
    def change(tensors: Tensors) -> None:
        tensors[name].view(-1)[place] = value

    return change


DRAFTED = torch.arange(61) < 23
WRONG_TENSORS: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "raw names": (renamed, "is a name of raw EAGLE-3 files; convert the head with `speculators convert"),
    "no output": (lost("lm_head.weight"), "lm_head.weight"),
    "no fc": (lost("fc.weight"), "fc.weight"),
    "a second layer": (put("layers.1.mlp.up_proj.weight", torch.ones(3)), "layers.1.mlp.up_proj.weight"),
    "a bias that is not said": (put("layers.0.self_attn.q_proj.bias", torch.ones(64)), "q_proj.bias"),
    "an fc of two states": (put("fc.weight", torch.ones(16, 32)), "fc.weight"),
    "an output of other ids": (put("lm_head.weight", torch.ones(24, 16)), "lm_head.weight"),
    "another embedding": (put("embed_tokens.weight", torch.ones(60, 16)), "embed_tokens.weight"),
    "a weight of numbers of 8 bits": (
        put("fc.weight", torch.ones(16, 48).to(torch.int8)),
        "fc.weight is torch.int8",
    ),
    "NaN": (at("layers.0.self_attn.k_proj.weight", 3, float("nan")), "k_proj.weight are finite"),
    "infinity": (at("norm.weight", 0, float("inf")), "norm.weight are finite"),
    "no offsets": (lost("d2t"), "d2t is missing"),
    "too few offsets": (put("d2t", torch.zeros(22, dtype=torch.int64)), "for 23 ids"),
    "offsets of floats": (put("d2t", torch.zeros(23)), "d2t is torch.float32"),
    "an offset beyond the target": (at("d2t", 22, 39), "draft id 22 beyond the 61 ids"),
    "an offset below 0": (at("d2t", 4, -5), "draft id 4 beyond"),
    "an offset that is too large for a sum": (at("d2t", 5, 2**63 - 1), "draft id 5 beyond"),
    "the same id twice": (put("d2t", -torch.arange(23)), "not ascending"),
    "other ids than t2d": (put("t2d", ~DRAFTED), "t2d and d2t do not name the same ids"),
    "a t2d of another target": (put("t2d", torch.ones(60, dtype=torch.bool)), "for 61 ids"),
    "a t2d of numbers": (put("t2d", torch.ones(61)), "t2d is torch.float32"),
}


@pytest.mark.parametrize("fault", WRONG_TENSORS)
def test_tensors_that_do_not_fit(folder: Path, fault: str) -> None:
    plant, said = WRONG_TENSORS[fault]
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    plant(tensors)
    save_file(tensors, folder / WEIGHTS)
    refused(folder, said)


@pytest.mark.parametrize("size", [0, 7, 100, -1, -1000])
def test_a_file_that_is_cut(folder: Path, size: int) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:size])
    refused(folder, WEIGHTS, "cannot be read")


def test_files_that_are_missing(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(NotFound, match="lacks its weights"):
        load_published(folder)
    (folder / CONFIG).unlink()
    with pytest.raises(NotFound, match="holds no published head"):
        load_published(folder)


def test_weights_in_several_files(folder: Path) -> None:
    whole, tensors = load_published(folder), load_file(folder / WEIGHTS)
    names = sorted(tensors)
    for place in range(2):
        save_file(
            {name: tensors[name] for name in names[place::2]}, folder / f"model-{place + 1}-of-2.safetensors"
        )
    refused(folder, "and so has another file beside it")
    (folder / WEIGHTS).unlink()
    wanted, found = whole.head.state_dict(), load_published(folder).head.state_dict()
    assert wanted.keys() == found.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_loaded_head_does_not_change_with_its_file(folder: Path) -> None:
    found, path = load_published(folder), folder / WEIGHTS
    before = {name: weight.clone() for name, weight in found.head.state_dict().items()}
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert all(torch.equal(weight, before[name]) for name, weight in found.head.state_dict().items())


def test_what_training_left_in_a_file_is_left_out(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors |= {
        "verifier_norm.weight": torch.ones(16),
        "verifier_lm_head.weight": torch.full((23, 16), torch.nan),
    }
    save_file(tensors, folder / WEIGHTS)
    assert load_published(folder).head.shape.own_embedding


@pytest.mark.parametrize(
    "layer",
    [
        {"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_theta": 500_000, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {
            "rope_parameters": {"rope_type": "linear", "rope_theta": 500_000.0, "factor": 2.0},
            "rope_theta": None,
        },
    ],
)
def test_older_and_newer_names_of_a_rotation(folder: Path, layer: Json) -> None:
    config = config_of(TARGET, 23, (0, 2, 4))
    config["transformer_layer_config"] |= layer
    (folder / CONFIG).write_text(json.dumps(config))
    found = read_config(folder).frequencies
    assert torch.allclose(found.each, 500_000.0 ** -(torch.arange(8) / 8) / 2) and found.scale == 1


def test_a_config_that_claims_much_takes_no_memory(folder: Path) -> None:
    config = config_of(TARGET, 23, (0, 2, 4))
    config["transformer_layer_config"] |= {
        "hidden_size": 1 << 24,
        "intermediate_size": 1 << 24,
        "vocab_size": 1 << 24,
    }
    (folder / CONFIG).write_text(json.dumps(config))
    refused(folder, "do not fit")
