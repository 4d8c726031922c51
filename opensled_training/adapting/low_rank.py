"""LoRA (arXiv 2106.09685): a model learns a product of two thin matrices beside each weight, and nothing else.

In the end the products are added to the weights, so that what comes out is an ordinary model. Written here rather than
taken from the `peft` package: it is one parametrization, and nothing has to load adapters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

# What is learned is scaled by this, whatever the rank: one learning rate then suits all ranks (alpha = 2 * rank).
SCALE = 2.0
SEED = 5


class _LowRank(nn.Module):
    """A matrix [out, in] and what was learned beside it: at first nothing."""

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        out, inner = weight.shape
        self.down = nn.Parameter(torch.randn(rank, inner, generator=generator) / math.sqrt(inner))
        self.up = nn.Parameter(torch.zeros(out, rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + SCALE * self.up @ self.down


def add_low_rank(layers: nn.Module, rank: int) -> None:
    """Let only matrices of this rank learn, one pair beside each linear layer of `layers`."""
    generator = torch.Generator().manual_seed(SEED)
    layers.requires_grad_(False)
    for module in list(layers.modules()):
        if isinstance(module, nn.Linear):
            register_parametrization(module, "weight", _LowRank(module.weight, rank, generator))


def merge_low_rank(layers: nn.Module) -> None:
    """Add what was learned to the weights; `layers` has the modules and names again that it had at first."""
    for module in layers.modules():
        if isinstance(module, nn.Linear):
            remove_parametrizations(module, "weight", leave_parametrized=True)
    layers.requires_grad_(True)
