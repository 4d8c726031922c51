"""The network of an EAGLE-3 head (arXiv 2503.01840), in the form of the `speculators` package (Apache-2.0).

One decoder layer reads a token's embedding beside the *features* of the row before it: what `fc` makes of three hidden
states of the target. It drafts one token a pass, and its own output takes the place of the features in the next one.
Modules have the names that they have in published files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from verify_server.heads.layers import turned


@dataclass(frozen=True)
class Eagle3Shape:
    """Sizes and switches of a head, as its `config.json` states them."""

    taps: int  # hidden states of the target that it reads
    size: int  # of a hidden state, of the target as of the head; d
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int  # ids that it can draft
    target_vocabulary: int
    eps: float
    query_norms: bool = False  # Qwen3's layers have them, Llama's have not
    attention_bias: bool = False
    output_bias: bool = False
    inner_bias: bool = False
    own_embedding: bool = True
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


class Frequencies(NamedTuple):
    """Of the rotation (RoPE)."""

    each: Tensor  # float32 [head size / 2]
    scale: float  # of what is rotated


class GainNorm(nn.Module):
    """RMSNorm as Llama and Qwen3 have it. Its gain is the weight itself, also beside a target whose own norms (Gemma's,
    Qwen3.5's) have 1 + weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, states: Tensor) -> Tensor:
        wide = states if states.dtype == torch.float64 else states.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        return self.weight * scaled.to(states.dtype)


class _Attention(nn.Module):
    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        width, kv_width, bias = (
            shape.heads * shape.head_size,
            shape.kv_heads * shape.head_size,
            shape.attention_bias,
        )
        self.q_proj = nn.Linear(2 * shape.size, width, bias)
        self.k_proj = nn.Linear(2 * shape.size, kv_width, bias)
        self.v_proj = nn.Linear(2 * shape.size, kv_width, bias)
        self.o_proj = nn.Linear(width, shape.size, shape.output_bias)
        if shape.query_norms:
            self.q_norm, self.k_norm = (GainNorm(shape.head_size, shape.eps) for _ in range(2))


class _Inner(nn.Module):
    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.size, shape.inner, shape.inner_bias)
        self.up_proj = nn.Linear(shape.size, shape.inner, shape.inner_bias)
        self.down_proj = nn.Linear(shape.inner, shape.size, shape.inner_bias)

    def forward(self, states: Tensor) -> Tensor:
        found: Tensor = self.down_proj(silu(self.gate_proj(states)) * self.up_proj(states))
        return found


class _Layer(nn.Module):
    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            GainNorm(shape.size, shape.eps) for _ in range(3)
        )
        self.self_attn, self.mlp = _Attention(shape), _Inner(shape)


class Eagle3Head(nn.Module):
    """Of n rows, or of the newest rows of n texts. Row p of a text is its token p beside the features of row p - 1."""

    def __init__(self, shape: Eagle3Shape) -> None:
        super().__init__()
        self.shape = shape
        # No weight: it keeps its precision, whatever the head's is.
        self.frequencies: Frequencies | None = None
        size, eps = shape.size, shape.eps
        if shape.own_embedding:
            self.embed_tokens = nn.Embedding(shape.target_vocabulary, size)
        self.fc = nn.Linear(shape.taps * size, size, bias=False)
        if shape.norm_before_fc:
            self.input_norm = GainNorm(shape.taps * size, eps)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(GainNorm(size, eps) for _ in range(shape.taps))
        self.layers = nn.ModuleList([_Layer(shape)])
        self.norm = GainNorm(size, eps)
        self.lm_head = nn.Linear(size, shape.vocabulary, bias=False)

    def features(self, hidden: Tensor) -> Tensor:
        """[n, d] of the target's hidden states [n, taps, d]."""
        if self.shape.fc_norm:
            hidden = torch.stack([norm(own) for norm, own in zip(self.fc_norm, hidden.unbind(1))], dim=1)
        joined = hidden.flatten(1)
        found: Tensor = self.fc(self.input_norm(joined) if self.shape.norm_before_fc else joined)
        return found

    def keys_values(self, embedded: Tensor, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[n, KV heads, head size] of rows at `positions` [n] with embeddings and features [n, d]."""
        joined, _ = self._read(embedded, features)
        return self._kept(joined, positions)

    def step(
        self,
        embedded: Tensor,
        features: Tensor,
        positions: Tensor,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """What the layer makes of these rows, [n, d]. `attend`: of queries [n, heads, head size] and the rows' own keys
        and values, over all that each of them sees; [n, heads, head size]."""
        joined, residual = self._read(embedded, features)
        attention, layer = self.layers[0].self_attn, self.layers[0]
        queries = attention.q_proj(joined).unflatten(-1, (-1, self.shape.head_size))
        if self.shape.query_norms:
            queries = attention.q_norm(queries)
        seen = attend(self._rotated(queries, positions), *self._kept(joined, positions))
        states = residual + attention.o_proj(seen.flatten(1))
        found: Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
        return found

    def said(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Of the layer's output [n, d]: logits [n, V], and what the next pass reads in place of features [n, d]."""
        normed = self.norm(states)
        return self.lm_head(normed), normed if self.shape.norm_output else states

    def _read(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """[n, 2d] that attention reads, and [n, d] that it adds to."""
        layer = self.layers[0]
        normed = layer.hidden_norm(features)
        residual = normed if self.shape.norm_before_residual else features
        return torch.cat([layer.input_layernorm(embedded), normed], dim=-1), residual

    def _kept(self, joined: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.layers[0].self_attn
        keys, values = (
            project(joined).unflatten(-1, (-1, self.shape.head_size))
            for project in (attention.k_proj, attention.v_proj)
        )
        if self.shape.query_norms:
            keys = attention.k_norm(keys)
        return self._rotated(keys, positions), values

    def _rotated(self, vectors: Tensor, positions: Tensor) -> Tensor:
        assert self.frequencies is not None
        return turned(vectors, positions, *self.frequencies)
