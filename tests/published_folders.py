"""Folders of the `speculators` format for tests, written without the package: a head of any weights for a target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from verify_server.heads.eagle3 import Eagle3Head
from verify_server.heads.speculators_config import CONFIG, read_config

WEIGHTS = "model.safetensors"


def config_of(text: Any, drafted: int, places: tuple[int, ...] | None, **told: Any) -> dict[str, Any]:
    """`config.json` of a head for a target with this config, as published ones are; `told`: of the head."""
    layer = {
        "model_type": "llama",
        "vocab_size": text.vocab_size,
        "hidden_size": text.hidden_size,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
    }
    return {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": drafted,
        "eagle_aux_hidden_state_layer_ids": None if places is None else list(places),
        "norm_before_residual": True,
        "speculators_config": {
            "algorithm": "eagle3",
            "verifier": {"name_or_path": "some/target", "architectures": []},
        },
        "transformer_layer_config": layer,
        **told,
    }


def tensors_of(folder: Path, seed: int = 3, embedding: bool = True) -> dict[str, Tensor]:
    """Of any weights, for the `config.json` in the folder: what it drafts is poor, and depends on all it reads."""
    torch.manual_seed(seed)
    shape = read_config(folder).shape
    found = {}
    for name, weight in Eagle3Head(shape).state_dict().items():
        spread = 0.3 if weight.ndim < 2 else 2 * weight.shape[-1] ** -0.5
        found[name] = torch.randn_like(weight) * spread + (weight.ndim < 2)
    if not embedding:
        del found["embed_tokens.weight"]
    if shape.vocabulary < shape.target_vocabulary:
        ids = torch.randperm(shape.target_vocabulary)[: shape.vocabulary].sort().values
        found["d2t"] = ids - torch.arange(shape.vocabulary)
        found["t2d"] = torch.zeros(shape.target_vocabulary, dtype=torch.bool).index_fill(0, ids, True)
    return found


def publish(folder: Path, config: dict[str, Any], seed: int = 3, embedding: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(config))
    save_file(tensors_of(folder, seed, embedding), folder / WEIGHTS)
    return folder
