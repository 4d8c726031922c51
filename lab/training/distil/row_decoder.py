"""Many texts of a Llama target at once, a token of each a step, with memory for each: for throughput on a CPU.

Rows of a step may read given tokens or write new ones, so a row that ends makes room for the next text at once. It
shares no code with the server's engine. In bfloat16 the sums along the layers and the logits of the likeliest tokens
stay in float32.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from transformers import LlamaForCausalLM

GROUP = 16  # rows that attend together


@dataclass(frozen=True)
class _Layer:
    """Weights of one layer; query, key and value are one matrix, and so are gate and up."""

    before_attention: Tensor
    qkv: Tensor
    out: Tensor
    before_mlp: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class _Group:
    """Neighbouring rows of a step."""

    rows: slice
    mask: Tensor  # [rows, 1, 1, seen]: what a row does not see is -inf


class RowDecoder:
    """`rows` texts of at most `length` tokens. `advance` reads one token of each and gives the hidden states.

    `model` is in float32; `dtype` is what the decoder multiplies in.
    """

    def __init__(
        self, model: LlamaForCausalLM, rows: int, length: int, dtype: torch.dtype = torch.float32
    ) -> None:
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width, self.eps = config.hidden_size // self.heads, config.rms_norm_eps
        self.embedding = model.model.embed_tokens.weight.detach()
        self.output = self.embedding.to(dtype)
        self.norm = model.model.norm.weight.detach()
        self.layers = [_layer_of(layer, dtype) for layer in model.model.layers]
        self.keys = torch.zeros(len(self.layers), rows, self.kv_heads, length, self.width, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.cos, self.sin = _rotations(model, length)

    @torch.inference_mode()
    def advance(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Normed hidden states [rows, hidden], float32, after `tokens` [rows] at `positions` [rows]."""
        hidden, groups = self.embedding[tokens], self._groups(positions)
        for number, layer in enumerate(self.layers):
            normed = self._normed(hidden, layer.before_attention).to(layer.qkv)
            attended = self._attend(number, linear(normed, layer.qkv), positions, groups)
            hidden = hidden + linear(attended, layer.out)
            normed = self._normed(hidden, layer.before_mlp).to(layer.qkv)
            gate, up = linear(normed, layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + linear(silu(gate) * up, layer.down)
        return self._normed(hidden, self.norm)

    @torch.inference_mode()
    def reorder(self, order: Tensor) -> None:
        """Row n takes over the text of row `order[n]`. Rows whose texts are about as long side by side cost least."""
        for memory in (*self.keys, *self.values):
            memory.copy_(memory[order])

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """After normed hidden states: ids [rows, count], likeliest first, and their log-probabilities in float32."""
        logits = linear(hidden.to(self.output), self.output).float()
        if self.output.dtype != torch.float32:  # whose rounding would reorder them
            likely = logits.topk(2 * count).indices
            logits.scatter_(1, likely, (self.embedding[likely] @ hidden[:, :, None])[..., 0])
        top = logits.topk(count)
        return top.indices, top.values - logits.logsumexp(-1, keepdim=True)

    def _normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden, hidden.shape[-1:], weight, self.eps)

    def _groups(self, positions: Tensor) -> list[_Group]:
        """Neighbouring rows read as much memory as the longest text of theirs needs."""
        groups = []
        for begin in range(0, len(positions), GROUP):
            rows = slice(begin, begin + GROUP)
            hidden_from = torch.arange(int(positions[rows].max()) + 1)[None, :] > positions[rows, None]
            mask = torch.zeros(hidden_from.shape, dtype=self.keys.dtype).masked_fill_(hidden_from, -math.inf)
            groups.append(_Group(rows, mask[:, None, None, :]))
        return groups

    def _attend(self, number: int, qkv: Tensor, positions: Tensor, groups: list[_Group]) -> Tensor:
        rows = len(qkv)
        heads = qkv.view(rows, self.heads + 2 * self.kv_heads, self.width)
        query, key, value = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        query, key = _rotated(query, cos, sin)[:, :, None], _rotated(key, cos, sin)
        every, keys, values = torch.arange(rows), self.keys[number], self.values[number]
        keys[every, :, positions] = key
        values[every, :, positions] = value
        attended = [
            scaled_dot_product_attention(
                query[group.rows],
                keys[group.rows, :, : group.mask.shape[-1]],
                values[group.rows, :, : group.mask.shape[-1]],
                attn_mask=group.mask,
                enable_gqa=True,
            )
            for group in groups
        ]
        return torch.cat(attended).reshape(rows, -1)


def _layer_of(layer: torch.nn.Module, dtype: torch.dtype) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = [projection.weight for projection in (attention.q_proj, attention.k_proj, attention.v_proj)]
    return _Layer(
        before_attention=layer.input_layernorm.weight.detach(),
        qkv=torch.cat(qkv).detach().to(dtype),
        out=attention.o_proj.weight.detach().to(dtype),
        before_mlp=layer.post_attention_layernorm.weight.detach(),
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).detach().to(dtype),
        down=mlp.down_proj.weight.detach().to(dtype),
    )


def _rotations(model: LlamaForCausalLM, length: int) -> tuple[Tensor, Tensor]:
    cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(length)[None])
    return cos[0].detach(), sin[0].detach()


def _rotated(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = vectors.chunk(2, dim=-1)
    return (vectors * cos + torch.cat((-second, first), dim=-1) * sin).to(vectors)
