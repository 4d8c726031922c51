"""The target of a GGUF file as plain transformers in float32, and its tokenizer."""

from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from verify_server.engine.torch import gguf_config, gguf_model
from verify_server.engine.torch.loading import has_fast_bfloat16


def load_target(path: Path) -> LlamaForCausalLM:
    """Its dequantized weights. Raises NotFound and UnsupportedModel."""
    model = LlamaForCausalLM(gguf_config.read_config(path)).to(torch.float32)
    gguf_model.fill(model, path)
    return model.requires_grad_(False).eval()


def working_dtype() -> torch.dtype:
    """What texts are written and drafts are trained in: bfloat16 where this processor multiplies in it."""
    return torch.bfloat16 if has_fast_bfloat16() else torch.float32
