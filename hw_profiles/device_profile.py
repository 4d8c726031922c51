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
class MeasuredDraft:
    """One draft model as `opensled profile calibrate` found it on this very machine."""

    at: str  # UTC, such as 2026-11-22T01:50:00Z
    threads: int  # with which it drafts fastest
    load: float  # processes that wanted to run meanwhile, on the average of a minute
    decode_per_s: Mapping[str, Quantity]  # draft tokens/s by number of threads
    # From a verdict to a block of so many draft tokens, with `threads` threads
    block_ms: Mapping[str, Quantity]
    long_decode_per_s: Quantity  # draft tokens/s after a prompt of some hundred tokens


@dataclass(frozen=True)
class MeasuredLink:
    """The way to one server, as `opensled profile calibrate` found it."""

    at: str
    rtt_ms: Quantity  # of a small call over gRPC
    jitter_ms: float  # mean difference between one round trip and the next


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
    calibrated: Mapping[str, MeasuredDraft] = field(default_factory=dict)  # by "drafter:model"
    servers: Mapping[str, MeasuredLink] = field(default_factory=dict)  # by HOST:PORT

    def draft(self, size: str) -> DraftSpeed:
        """The speed of a draft model of `size`; raises UsageError naming the sizes known."""
        if size not in self.drafts:
            known = ", ".join(self.drafts)
            raise UsageError(f"no speed of a {size!r} draft is known for {self.id}; choose from {known}")
        return self.drafts[size]
