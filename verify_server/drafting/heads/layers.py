"""Parts that draft heads are built of: norms, grouped attention heads, rotations, a gated feed-forward network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from verify_server.drafting.heads.base import HeadShape

EPS = 1e-5


class RmsNorm(nn.Module):
    """Of the last dimension, `size` long."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, states: Tensor) -> Tensor:
        # Squares of bfloat16 have too few bits; float64 keeps its own.
        wide = states if states.dtype == torch.float64 else states.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
        return scaled.to(states.dtype) * self.weight.to(states.dtype)


class SwiGlu(nn.Module):
    """[..., size] to [..., size] over `inner`."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(size, inner, bias=False)
        self.up = nn.Linear(size, inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        found: Tensor = self.down(silu(self.gate(states)) * self.up(states))
        return found


class KeysValues(nn.Module):
    """[..., size] to keys and values [..., KV heads, head size]."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.key = nn.Linear(shape.size, shape.kv_heads * shape.head_size, bias=False)
        self.value = nn.Linear(shape.size, shape.kv_heads * shape.head_size, bias=False)
        self._heads = (shape.kv_heads, shape.head_size)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return self.key(states).unflatten(-1, self._heads), self.value(states).unflatten(-1, self._heads)


class Queries(nn.Module):
    """[..., size] to queries [..., heads, head size], and what they found back to [..., size]."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.query = nn.Linear(shape.size, shape.heads * shape.head_size, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_size, shape.size, bias=False)
        self._heads = (shape.heads, shape.head_size)

    def forward(self, states: Tensor) -> Tensor:
        found: Tensor = self.query(states).unflatten(-1, self._heads)
        return found

    def back(self, attended: Tensor) -> Tensor:
        found: Tensor = self.out(attended.flatten(-2))
        return found


def among_themselves(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of [B, Q, heads, size] over keys and values [B, Q, KV heads, size], all those of the same draft."""
    group = queries.shape[2] // keys.shape[2]
    keys, values = (each.repeat_interleave(group, dim=2).transpose(1, 2) for each in (keys, values))
    return scaled_dot_product_attention(queries.transpose(1, 2), keys, values).transpose(1, 2)


def rotate(vectors: Tensor, positions: Tensor, theta: float) -> Tensor:
    """RoPE, its halves turned against each other: `vectors` [..., heads, size] at `positions` [...]."""
    half = vectors.shape[-1] // 2
    powers = torch.arange(half, device=vectors.device, dtype=torch.float32) / half
    angles = positions[..., None].float() * theta**-powers
    cos, sin = angles.cos()[..., None, :], angles.sin()[..., None, :]
    first, second = vectors.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(vectors)
