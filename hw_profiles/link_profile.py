"""A network link between a device and a server, and the seconds it takes."""

from __future__ import annotations

from dataclasses import dataclass

from hw_profiles.quantity import Quantity


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

    @property
    def rtt_s(self) -> float:
        """The median round-trip time of a small message, seconds."""
        return self.rtt_p50_ms.typical / 1000

    def send_s(self, size: int, up: bool = True) -> float:
        """Median seconds until `size` bytes have arrived at the other end."""
        rate = (self.up_mbit_s if up else self.down_mbit_s).typical
        return self.rtt_s / 2 + 8 * size / (rate * 1e6)
