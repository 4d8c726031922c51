"""A device that drafts: how fast, and what it costs in memory and power."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hw_profiles.quantity import Quantity
from opensled.errors import UsageError


@dataclass(frozen=True)
class DraftSpeed:
    """One draft model on one device, alone on it: the typical speeds and the seconds they imply."""

    size: str  # such as "0.5b"
    decode_per_s: Quantity  # draft tokens/s, batch 1
    prefill_per_s: Quantity  # prompt tokens/s

    def draft_s(self, tokens: int) -> float:
        """Seconds to draft `tokens` tokens one after another."""
        return tokens / self.decode_per_s.typical

    def prefill_s(self, tokens: int) -> float:
        """Seconds to read `tokens` tokens of a prompt."""
        return tokens / self.prefill_per_s.typical


@dataclass(frozen=True)
class DeviceProfile:
    """A board, or a computer that people draft on."""

    id: str
    name: str
    cores: int  # physical CPU cores
    memory_gib: float
    bandwidth_gb_s: Quantity  # memory, GB/s
    idle_w: Quantity
    busy_w: Quantity
    drafts: Mapping[str, DraftSpeed] = field(default_factory=dict)  # by size of the draft model

    def draft(self, size: str) -> DraftSpeed:
        """The speed of a draft model of `size`; raises UsageError naming the sizes known."""
        if size not in self.drafts:
            known = ", ".join(self.drafts)
            raise UsageError(f"no speed of a {size!r} draft is known for {self.id}; choose from {known}")
        return self.drafts[size]
