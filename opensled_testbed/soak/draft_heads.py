"""The draft head that a soak needs: a published one that knows nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from opensled.store import model_path

HEADS, KV_HEADS, HEAD_SIZE, INNER = 4, 2, 16, 48  # of the published one
PLACES = (0, 2, 4)  # hidden states that it reads


def published(model: str, folder: Path) -> Path:
    """A head for `model` in the format of the `speculators` package, with any weights: its drafts are hardly ever
    right, and cost what drafts cost."""
    if (folder / "config.json").is_file():
        return folder
    folder.mkdir()
    own = json.loads((model_path(model) / "config.json").read_text())
    size, vocabulary = own["hidden_size"], own["vocab_size"]
    layer = {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": size,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
    }
    config = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": vocabulary,
        "eagle_aux_hidden_state_layer_ids": PLACES,
        "transformer_layer_config": layer,
    }
    save_file(_weights(size, vocabulary), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _weights(size: int, vocabulary: int) -> dict[str, np.ndarray]:
    wide, narrow = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    matrices = {
        "fc": (size, len(PLACES) * size),
        "layers.0.self_attn.q_proj": (wide, 2 * size),
        "layers.0.self_attn.k_proj": (narrow, 2 * size),
        "layers.0.self_attn.v_proj": (narrow, 2 * size),
        "layers.0.self_attn.o_proj": (size, wide),
        "layers.0.mlp.gate_proj": (INNER, size),
        "layers.0.mlp.up_proj": (INNER, size),
        "layers.0.mlp.down_proj": (size, INNER),
        "lm_head": (vocabulary, size),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    chance = np.random.default_rng(3)
    drawn = {name: chance.normal(size=shape) / shape[1] ** 0.5 for name, shape in matrices.items()}
    gains = {name: np.ones(size) for name in ("norm", *(f"layers.0.{norm}" for norm in norms))}
    return {f"{name}.weight": weight.astype(np.float32) for name, weight in {**drawn, **gains}.items()}
