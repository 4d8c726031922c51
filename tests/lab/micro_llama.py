"""A Llama of any weights and a few thousand parameters, as a target of training."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def micro_llama(vocab_size: int, end: int, hidden: int, layers: int, heads: int) -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=2, tie_word_embeddings=True, eos_token_id=[end],
        initializer_range=0.15,
    )  # fmt: skip
    return LlamaForCausalLM(config).requires_grad_(False).eval()
