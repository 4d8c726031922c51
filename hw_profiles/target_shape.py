"""The shape of a target (or draft) model: what one forward pass of it reads and computes."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class TargetShape:
    """A decoder's size. Numbers of the published configuration, exact; so they have no range."""

    id: str
    name: str
    source: str
    params: float  # all weights
    active_params: float  # weights that one token goes through
    layers: int
    kv_heads: int
    head_dim: int
    experts: int = 0  # of each layer; 0 = dense
    experts_per_token: int = 0
    weight_bits: float = 16.0  # as served
    kv_bits: float = 16.0

    def at(self, weight_bits: float) -> TargetShape:
        """The same model quantized."""
        return replace(self, weight_bits=weight_bits)

    @property
    def weight_bytes(self) -> float:
        return self.params * self.weight_bits / 8

    @property
    def kv_bytes(self) -> float:
        """Bytes of KV for one position."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_bits / 8

    def bytes_read(self, tokens: float) -> float:
        """Weights that a step over `tokens` tokens reads: with a mixture of experts, those that any of them needs.

        Tokens choose their experts independently here; real ones agree more often, so this is the high side.
        """
        if not self.experts:
            return self.weight_bytes
        share = self.experts_per_token / self.experts
        expert_params = (self.params - self.active_params) / (1 - share)
        touched = 1 - (1 - share) ** tokens
        return (self.params - expert_params * (1 - touched)) * self.weight_bits / 8
