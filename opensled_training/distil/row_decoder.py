"""Many texts of a Llama target at once, a token of each a step, with memory for each: for throughput on a CPU.

Rows of a step may read given tokens or write new ones, so a row that ends makes room for the next text at once. It
shares no code with the server's engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu
from transformers import LlamaForCausalLM


@dataclass(frozen=True)
class _Layer:
    """Weights of one layer; query, key and value are one matrix, and so are gate and up."""

    before_attention: Tensor
    qkv: Tensor
    out: Tensor
    before_mlp: Tensor
    gate_up: Tensor
    down: Tensor


class RowDecoder:
    """`rows` texts of at most `length` tokens. `advance` reads one token of each and gives the hidden states."""

    def __init__(self, model: LlamaForCausalLM, rows: int, length: int) -> None:
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width, self.eps = config.hidden_size // self.heads, config.rms_norm_eps
        self.embedding = model.model.embed_tokens.weight.detach()
        self.norm = model.model.norm.weight.detach()
        self.layers = [_layer_of(layer) for layer in model.model.layers]
        self.keys = torch.zeros(len(self.layers), rows, self.kv_heads, length, self.width)
        self.values = torch.zeros_like(self.keys)
        self.cos, self.sin = _rotations(model, length)

    @torch.inference_mode()
    def advance(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Normed hidden states [rows, hidden] after `tokens` [rows] at `positions` [rows]."""
        hidden = self.embedding[tokens]
        seen = int(positions.max()) + 1
        hidden_from = torch.arange(seen)[None, :] > positions[:, None]  # [rows, seen]
        mask = torch.zeros(len(tokens), 1, 1, seen).masked_fill_(hidden_from[:, None, None, :], -math.inf)
        for number, layer in enumerate(self.layers):
            normed = rms_norm(hidden, hidden.shape[-1:], layer.before_attention, self.eps)
            attended = self._attend(number, linear(normed, layer.qkv), positions, mask)
            hidden = hidden + linear(attended, layer.out)
            normed = rms_norm(hidden, hidden.shape[-1:], layer.before_mlp, self.eps)
            gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + linear(silu(gate) * up, layer.down)
        return rms_norm(hidden, hidden.shape[-1:], self.norm, self.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of normed hidden states, by the tied embedding: [rows, vocabulary]."""
        return linear(hidden, self.embedding)

    def _attend(self, number: int, qkv: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        rows, seen = len(qkv), mask.shape[-1]
        heads = qkv.view(rows, self.heads + 2 * self.kv_heads, self.width)
        query, key, value = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        query, key = _rotated(query, cos, sin), _rotated(key, cos, sin)
        every = torch.arange(rows)
        self.keys[number, every, :, positions] = key
        self.values[number, every, :, positions] = value
        grouped = query.reshape(rows, self.kv_heads, -1, self.width) / math.sqrt(self.width)
        scores = grouped @ self.keys[number, :, :, :seen].transpose(-1, -2) + mask
        return (scores.softmax(-1) @ self.values[number, :, :, :seen]).reshape(rows, -1)


def _layer_of(layer: torch.nn.Module) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = [projection.weight for projection in (attention.q_proj, attention.k_proj, attention.v_proj)]
    return _Layer(
        before_attention=layer.input_layernorm.weight.detach(),
        qkv=torch.cat(qkv).detach(),
        out=attention.o_proj.weight.detach(),
        before_mlp=layer.post_attention_layernorm.weight.detach(),
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach(),
        down=mlp.down_proj.weight.detach(),
    )


def _rotations(model: LlamaForCausalLM, length: int) -> tuple[Tensor, Tensor]:
    cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(length)[None])
    return cos[0].detach(), sin[0].detach()


def _rotated(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cos + torch.cat((-second, first), dim=-1) * sin
