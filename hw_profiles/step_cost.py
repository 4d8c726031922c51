"""Seconds of one step of a target, as scheduling policies calculate with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class StepCost(Protocol):
    """What a step costs. `TargetCost` is one, from profiles; a learned one is another."""

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        """Seconds of a step that computes `tokens` new positions of `sessions` sessions and reads `contexts` KV
        positions over all of them; 0 for no tokens."""


@dataclass(frozen=True)
class Roofline:
    """`max(read_s, tokens * token_s) + contexts * context_s + sessions * session_s + overhead_s`.

    The defaults are of a small target on a CPU, for a machine that is not measured (chosen; a server learns its own).
    """

    read_s: float = 0.005  # to read the weights once
    token_s: float = 2e-4  # to compute one position
    context_s: float = 1e-7  # to read one position of KV
    session_s: float = 1e-5
    overhead_s: float = 1e-3

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        """See `StepCost`."""
        if tokens <= 0:
            return 0.0
        work = max(self.read_s, tokens * self.token_s) + contexts * self.context_s
        return work + sessions * self.session_s + self.overhead_s
