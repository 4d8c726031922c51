"""What a step of a target costs: a roofline over what it reads and what it computes.

`t = max(weights / bandwidth, tokens * 2P / flops) + contexts * kv_bytes / bandwidth + overhead`
"""

from __future__ import annotations

from dataclasses import dataclass

from hw_profiles.accelerator_profile import AcceleratorProfile
from hw_profiles.target_shape import TargetShape


@dataclass(frozen=True)
class TargetCost:
    """One target on one accelerator."""

    accelerator: AcceleratorProfile
    target: TargetShape

    def verify_s(self, tokens: float, contexts: float, sessions: float = 0) -> float:
        """Seconds of one step: `tokens` new tokens over all sessions, `contexts` KV positions read over all sessions.

        A step over nothing takes no time; by this law the number of sessions itself costs nothing.
        """
        if tokens <= 0:
            return 0.0
        bandwidth = self.accelerator.bandwidth_gb_s.typical * 1e9
        read = self.target.bytes_read(tokens) / bandwidth
        compute = tokens * 2 * self.target.active_params / (self.accelerator.tflops.typical * 1e12)
        kv = contexts * self.target.kv_bytes / bandwidth
        return max(read, compute) + kv + self.accelerator.step_overhead_ms.typical / 1000

    def draft_s(self, tokens: int, sessions: int, contexts: int) -> float:
        """Seconds in which this model, as a draft on the server, drafts `tokens` tokens for each of `sessions`."""
        return tokens * self.verify_s(sessions, contexts)

    @property
    def kv_positions(self) -> int:
        """KV positions that fit beside the weights; 0 if the weights themselves do not."""
        room = self.accelerator.memory_gib * 2**30 * self.accelerator.usable_memory.typical
        return max(0, int((room - self.target.weight_bytes) / self.target.kv_bytes))

    def sessions_that_fit(self, context: int) -> int:
        """Sessions of `context` positions whose KV is resident at the same time."""
        return self.kv_positions // max(1, context)
