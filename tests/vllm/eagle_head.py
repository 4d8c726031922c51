"""An EAGLE-3 head of random weights, as vLLM reads it: its drafts are wrong, and change no text."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def write(folder: Path, target: Path) -> str:
    """For the target in a folder; where it lies."""
    config = json.loads((target / "config.json").read_text())
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": config["vocab_size"],
        "tie_word_embeddings": False,
        # vLLM's choice, for models of more layers, names one twice
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(config), folder / "model.safetensors")
    return str(folder)


def _weights(config: dict[str, int]) -> dict[str, torch.Tensor]:
    hidden, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {
        "fc": (hidden, 3 * hidden),
        "embed_tokens": (words, hidden),
        "lm_head": (words, hidden),
        "midlayer.self_attn.q_proj": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, queries),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
    }
    norms = (
        "norm",
        *[f"midlayer.{name}" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")],
    )
    chance = torch.Generator().manual_seed(1)
    drawn = {f"{name}.weight": 0.02 * torch.randn(shape, generator=chance) for name, shape in shapes.items()}
    return drawn | {f"{name}.weight": torch.ones(hidden) for name in norms}
