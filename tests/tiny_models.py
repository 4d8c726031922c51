"""Random-weight models of a few thousand parameters, one per family, for tests of engines and servers."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

# Small, but with every feature on: grouped heads, windows shorter than the tests' sequences, soft caps, experts.
VOCABULARY = 97
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Ten times the usual spread: attention must matter enough for a bug in it to change tokens.
    "initializer_range": 0.2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ARCHITECTURES: dict[str, dict] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 9},
    "gemma2": {"sliding_window": 9, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 9, "query_pre_attn_scalar": 16},
    "qwen3_moe": _EXPERTS,
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "mamba": {},
    "qwen3_5_text": {},
    "bloom": {},
    "phi3": {"partial_rotary_factor": 1.0, "head_dim": 12},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def random_model(arch: str, folder: Path, seed: int = 0, **overrides: object) -> Path:
    """Saves a random model of the family `arch` (config and safetensors) to `folder`; the same for the same seed.

    `overrides` replace fields of its config.
    """
    config = AutoConfig.for_model(arch, **{**_COMMON, **ARCHITECTURES[arch], **overrides})
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a random model by family."""
    return cache(lambda family: random_model(family, tmp_path_factory.mktemp(family)))


def by_rows(border: int) -> Callable[[nn.Linear, torch.Tensor], torch.Tensor]:
    """A linear layer whose last bits depend on how many rows it is given: other bits from `border` rows on."""

    def forward(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        out = nn.functional.linear(inputs, layer.weight, layer.bias)
        return out * (1 + 2**-20) if inputs.shape[-2] < border else out

    return forward
