"""Profiles of devices, links, accelerators and targets: measured numbers, and the seconds they imply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Any

from opensled.core.errors import UsageError

KEYS = ("min", "typical", "max", "source")
# Bytes of a draft or a verdict with its headers (gRPC, HTTP/2, TCP, IP) around some 20 of OpenSLED
MESSAGE = 110
Curve = tuple[tuple[float, float], ...]  # rows of a step, ascending, and what it takes, never falling


@dataclass(frozen=True)
class Quantity:
    """A number with the range its sources span. Its unit stands in the name of its key."""

    typical: float
    min: float
    max: float
    source: str  # who measured it, or how it was derived

    @classmethod
    def of(cls, table: Any, key: str) -> Quantity:
        """From a TOML table {min, typical, max, source}; raises UsageError naming `key`."""
        if not isinstance(table, Mapping) or set(table) != set(KEYS):
            raise UsageError(f"{key}: a table with exactly min, typical, max and source is needed")
        low, typical, high = (table[name] for name in KEYS[:3])
        numbers = (low, typical, high)
        if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in numbers):
            raise UsageError(f"{key}: min, typical and max are numbers")
        if not 0 <= low <= typical <= high:
            raise UsageError(f"{key}: 0 <= min <= typical <= max is needed, not {low}, {typical}, {high}")
        if not isinstance(table["source"], str) or not table["source"].strip():
            raise UsageError(f"{key}: name the source")
        return cls(float(typical), float(low), float(high), table["source"])

    def times(self, factor: float) -> Quantity:
        """The same in a unit that is so much smaller."""
        return Quantity(
            factor * self.typical, factor * self.min, factor * self.max, f"{self.source}, times {factor:.3g}"
        )

    def __str__(self) -> str:
        if self.min == self.max:
            return f"{self.typical:g}"
        return f"{self.typical:g} ({self.min:g} to {self.max:g})"


@dataclass(frozen=True)
class DraftSpeed:
    """One draft model on one device, alone on it: the typical speeds and the seconds they imply."""

    size: str  # such as "0.5b"
    decode_per_s: Quantity  # draft tokens/s, batch 1
    prefill_per_s: Quantity  # prompt tokens/s

    def draft_s(self, tokens: int) -> float:
        """Seconds to draft `tokens` tokens one after another."""
        return tokens / self.decode_per_s.typical


@dataclass(frozen=True)
class MeasuredLink:
    """The way to one server, as `opensled profile calibrate` found it."""

    at: str
    rtt_ms: Quantity  # of a small call over gRPC
    jitter_ms: float  # mean difference between one round trip and the next


@dataclass(frozen=True)
class DeviceProfile:
    """A board, or a computer, that drafts."""

    id: str
    name: str
    cores: int  # physical CPU cores
    memory_gib: float
    bandwidth_gb_s: Quantity  # memory, GB/s
    idle_w: Quantity
    busy_w: Quantity
    also: tuple[str, ...] = ()  # other names that people type
    drafts: Mapping[str, DraftSpeed] = field(default_factory=dict)  # by size of the draft model
    servers: Mapping[str, MeasuredLink] = field(default_factory=dict)  # by HOST:PORT

    def draft(self, size: str) -> DraftSpeed:
        """The speed of a draft model of `size`; raises UsageError naming the sizes known."""
        if size not in self.drafts:
            known = ", ".join(self.drafts)
            raise UsageError(f"no speed of a {size!r} draft is known for {self.id}; choose from {known}")
        return self.drafts[size]


@dataclass(frozen=True)
class LinkProfile:
    """Both directions of a link. Half of the round-trip time belongs to each."""

    id: str
    name: str
    rtt_p50_ms: Quantity
    rtt_p99_ms: Quantity
    up_mbit_s: Quantity  # device to server, Mbit/s
    down_mbit_s: Quantity  # server to device, Mbit/s
    loss: Quantity  # share of packets lost, 0 to 1
    burst: float  # mean number of packets lost in a row; 1 = each by itself
    also: tuple[str, ...] = ()  # other names that people type

    @property
    def rtt_s(self) -> float:
        """The median round-trip time of a small message, seconds."""
        return self.rtt_p50_ms.typical / 1000


@dataclass(frozen=True)
class AcceleratorProfile:
    """A GPU, or a hub that has one. Achieved rates, not those of the data sheet."""

    id: str
    name: str
    memory_gib: float
    usable_memory: Quantity  # share of the memory that weights and KV may take, 0 to 1
    bandwidth_gb_s: Quantity  # memory, achieved, GB/s
    tflops: Quantity  # dense half precision, achieved, TFLOP/s
    step_overhead_ms: Quantity  # of one forward pass beside its arithmetic: launches, sampling, scheduling
    hour_usd: Quantity  # price of renting, or of owning, one hour
    busy_w: Quantity
    measured: bool  # whether OpenSLED's own engine was measured on it; else the numbers are derived
    idle_w: Quantity | None = None  # with the target loaded and no step under way; None = not known
    also: tuple[str, ...] = ()  # other names that people type
    # Steps over several rows, as multiples of the roofline of one, and their source; by kind and bits: "dense 8.5"
    rows: Mapping[str, tuple[Curve, str]] = field(default_factory=dict)
    speeds: Mapping[str, Quantity] = field(default_factory=dict)  # published tokens/s; by target and bits

    def curve(self, kind: str, bits: float) -> Curve:
        """Of the weight format nearest to `bits` among those of `kind`; the roofline's one row where there is none."""
        known = {abs(float(key.split()[1]) - bits): key for key in self.rows if key.split()[0] == kind}
        return self.rows[known[min(known)]][0] if known else ((1.0, 1.0),)


@dataclass(frozen=True)
class TrainedHead:
    """A draft head that others trained for a target, and how often its drafts stood there."""

    id: str
    name: str
    source: str
    share: Quantity  # of the weights that a token of the target goes through, which a pass reads
    bits: float  # of its weights; 0 = as the target's
    passes: str  # "each" token has one, or "one" drafts them all
    reach: tuple[float, ...]  # share of drafts that stand to each place
    also: tuple[str, ...] = ()  # other names that people type

    @property
    def rates(self) -> tuple[float, ...]:
        """Chance of each place, given that those before it stand."""
        return tuple(here / before for before, here in pairwise((1.0, *self.reach)))


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
    outer_bits: float = 0.0  # of a weight outside the experts, where these have a format of their own
    kv_layers: int = 0  # that keep the KV of a whole text; 0 = all of them
    head: str = ""  # a trained head that is published for it
    also: tuple[str, ...] = ()  # other names that people type
    # A draft head is built by these; 0 = not known
    hidden_size: int = 0
    heads: int = 0  # of queries
    inner_size: int = 0  # of the feed-forward network; where it has experts, that of the configuration

    def at(self, weight_bits: float) -> TargetShape:
        """The same model quantized."""
        return replace(self, weight_bits=weight_bits)

    @property
    def weight_bytes(self) -> float:
        return self.bytes_read(inf)

    @property
    def kv_bytes(self) -> float:
        """Bytes of KV for one position."""
        return 2 * (self.kv_layers or self.layers) * self.kv_heads * self.head_dim * self.kv_bits / 8

    def bytes_read(self, tokens: float) -> float:
        """Weights that a step over `tokens` tokens reads: with a mixture of experts, those that any of them needs.

        Tokens choose their experts independently here; real ones agree more often, so this is the high side.
        """
        if not self.experts:
            return self.params * self.weight_bits / 8
        share = self.experts_per_token / self.experts
        expert_params = (self.params - self.active_params) / (1 - share)
        touched = 1 - (1 - share) ** tokens
        outer = (self.params - expert_params) * (self.outer_bits or self.weight_bits)
        return (outer + expert_params * touched * self.weight_bits) / 8
