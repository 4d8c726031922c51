"""A draft head on a device: what a block of it costs there, and the bytes that its hidden states are on the link.

A block is one pass: it reads the head's weights, and computes all places of its draft at once,

    block_s = max(bytes / bandwidth, operations / rate) + CALL_S
    rows_s(n) = max(bytes of what reads a row / bandwidth, operations / rate)      for n rows that came with a verdict

`float32` is how `opensled export-head` writes heads and ONNX Runtime computes them, on the cores: the rates are those
of [draft_heads] in its profile. Fewer bits are arithmetic alone, for no such head is written yet: the rates are
those that the device's draft model reaches in its own runtime, bytes by its tokens/s, operations by how fast it reads a
prompt. docs/drafters.md holds the law against blocks measured on a core. What attention computes is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from hw_profiles import catalog
from hw_profiles.draft_head import TAPS, HeadProfile
from hw_profiles.profiles import DeviceProfile, HeadSpeed
from opensled.errors import UsageError
from opensled.features import SCALE_BYTES, most_rows

FLOAT32 = 32.0  # bits of a weight, as heads are exported
# Of one call of ONNX Runtime, and of choosing tokens from what it gives (docs/drafters.md)
CALL_S = 0.0003
STATES = {
    "specformer": TAPS
}  # hidden states that a kind of heads reads at each position; all others read one
RUN_BYTES = 24  # of a run of rows on the wire beside its rows
# Of a weight of a 0.5B draft in its 4-bit file, embedding included: 0.49 GB (devices/laptop-cpu.toml)
DRAFT_BITS = 8.0


def states_of(kind: str) -> int:
    """Hidden states that a head of this kind reads at each position."""
    return STATES.get(kind, 1)


def row_bytes(states: int, size: int) -> int:
    """One position on the wire: `states` hidden states of `size` elements in 8 bits, and their scales."""
    return states * (size + SCALE_BYTES)


def rows_bytes(rows: int, states: int, size: int) -> int:
    """So many positions in one run."""
    return rows * row_bytes(states, size) + RUN_BYTES if rows else 0


@dataclass(frozen=True)
class DeviceHeadCost:
    """One head of a target on one device."""

    head: HeadProfile
    speed: HeadSpeed
    bits: float = FLOAT32

    @classmethod
    def of(
        cls, device: DeviceProfile, head: HeadProfile, bits: float = FLOAT32, size: str = "0.5b"
    ) -> DeviceHeadCost:
        """`size`: of the draft model by whose runtime fewer bits than float32 are reckoned. Raises UsageError for a
        device whose profile does not say how fast it computes heads."""
        if bits < FLOAT32:
            return cls(head, _of_draft(device, size), bits)
        if device.draft_heads is None:
            raise UsageError(
                f"the profile of {device.id} has no table [draft_heads]; add its bandwidth_gb_s and gflops"
            )
        return cls(head, device.draft_heads, bits)

    @property
    def weight_bytes(self) -> float:
        """What a block reads."""
        weights = self.head.weights
        return (weights.draft + weights.place + self.head.output_params) * self.bits / 8

    @property
    def block_s(self) -> float:
        """Seconds from the newest row to a whole draft."""
        return self._work_s(self.weight_bytes, self.head.draft_operations) + CALL_S

    def rows_s(self, rows: int) -> float:
        """Seconds to read rows that came with a verdict; 0 for none."""
        if rows <= 0:
            return 0.0
        weights = self.head.weights.row
        return self._work_s(weights * self.bits / 8, 2 * rows * weights) + CALL_S

    def _work_s(self, read: float, operations: float) -> float:
        return max(
            read / (self.speed.bandwidth_gb_s.typical * 1e9), operations / (self.speed.gflops.typical * 1e9)
        )

    @property
    def states(self) -> int:
        """Hidden states of each position."""
        return states_of(self.head.kind)

    @property
    def prompt_bytes(self) -> int:
        """What the newest rows of a long prompt are on the link, once."""
        size = self.head.target.hidden_size
        return rows_bytes(most_rows(self.states, size), self.states, size)


def _of_draft(device: DeviceProfile, size: str) -> HeadSpeed:
    """The rates that a draft model of `size` reaches on the device."""
    draft, shape = device.draft(size), catalog.target(f"draft-{size}")
    read, computed = shape.params * DRAFT_BITS / 8 / 1e9, 2 * shape.active_params / 1e9
    return HeadSpeed(draft.decode_per_s.times(read), draft.prefill_per_s.times(computed))
