"""Seconds of one step of a target, as scheduling policies calculate with them."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any, Protocol

from hw_profiles.profiles import AcceleratorProfile, Curve, TargetShape


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
        if tokens <= 0:
            return 0.0
        work = max(self.read_s, tokens * self.token_s) + contexts * self.context_s
        return work + sessions * self.session_s + self.overhead_s


ROOFLINE = Roofline()  # of a machine that is not measured


@dataclass(frozen=True)
class DraftingCost:
    """What a drafter beside the target costs (hw_profiles/drafting_cost.py). The defaults are of tables."""

    pass_s: float = 0.0
    token_s: float = 1e-5
    read_s: float = 1e-6
    max_passes: float = inf  # 1 of a draft head, which drafts all tokens in one
    measured: bool = False  # on this server; else it is assumed

    def passes(self, longest: Any) -> Any:
        """For drafts the longest of which has `longest` tokens: a number, or an array."""
        if self.max_passes == inf:
            return longest
        # In plain arithmetic: what only reads profiles must do without numpy (`opensled doctor` where it is broken).
        return longest - (longest - self.max_passes) * (longest > self.max_passes)

    def seconds(self, longest: Any, tokens: Any, read: Any) -> Any:
        """Of drafts of `tokens` tokens together, the longest of which has `longest`, after `read` tokens of text:
        numbers, or arrays."""
        return self.pass_s * self.passes(longest) + self.token_s * tokens + self.read_s * read


@dataclass(frozen=True)
class HardwareProfile:
    """A target on its machine, for step planning."""

    # Tokens one forward computes at most: bounds how long a step delays all sessions (chosen)
    max_step_tokens: int = 512
    cost: StepCost = ROOFLINE
    drafting: tuple[DraftingCost, ...] = ()  # of the drafters beside the target


def interpolated(curve: Curve, rows: float) -> float:
    """The straight line between the points of a curve; before the first one and behind the last as there."""
    for (low, less), (high, more) in pairwise(curve):
        if rows < high:
            return less + (more - less) * max(0.0, rows - low) / (high - low)
    return curve[-1][1]


@dataclass(frozen=True)
class TargetCost:
    """One target on one accelerator: a roofline over what it reads and what it computes.

    `t = max(weights / bandwidth, tokens * 2P / flops) + contexts * kv_bytes / bandwidth + overhead`

    Where its profile has a curve over rows, that says what several rows take; beyond it the roofline's slope goes on.
    """

    accelerator: AcceleratorProfile
    target: TargetShape

    @property
    def weight_bytes(self) -> float:
        return self.target.weight_bytes

    @property
    def kv_bytes(self) -> float:
        return self.target.kv_bytes

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        """By this law the number of sessions itself costs nothing."""
        if tokens <= 0:
            return 0.0
        kv = contexts * self.target.kv_bytes / (self.accelerator.bandwidth_gb_s.typical * 1e9)
        if tokens >= self._curve[-1][0]:
            return self._roofline_s(tokens) + self._above_s + kv
        return self._one_row_s * interpolated(self._curve, tokens) + kv

    @cached_property
    def _curve(self) -> Curve:
        kind = "experts" if self.target.experts else "dense"
        return self.accelerator.curve(kind, self.target.weight_bits)

    @cached_property
    def _one_row_s(self) -> float:
        return self._roofline_s(1)

    @cached_property
    def _above_s(self) -> float:
        """Seconds by which the end of the curve is above the roofline."""
        rows, times = self._curve[-1]
        return self._one_row_s * times - self._roofline_s(rows)

    def _roofline_s(self, tokens: float) -> float:
        read = self.target.bytes_read(tokens) / (self.accelerator.bandwidth_gb_s.typical * 1e9)
        compute = tokens * 2 * self.target.active_params / (self.accelerator.tflops.typical * 1e12)
        return max(read, compute) + self.accelerator.step_overhead_ms.typical / 1000
