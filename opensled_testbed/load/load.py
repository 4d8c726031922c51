"""When requests come: the arrival processes, and how long a run warms up and measures."""

from __future__ import annotations

from dataclasses import dataclass

ARRIVALS = ("closed", "poisson", "bursty", "trace")


@dataclass(frozen=True)
class Load:
    """How much is asked. Seconds are emulated ones where time is dilated."""

    arrivals: str = "closed"  # closed: every user asks again after the answer
    rate: float = 1.0  # requests/s of the whole fleet, for poisson and bursty
    burstiness: float = 1.0  # shape of the gamma between arrivals (vLLM's): 1 = Poisson, less = burstier
    trace: tuple[float, ...] = ()  # times of arrival, for `trace`
    think: float = 0.0  # mean seconds a user of `closed` thinks before the next request (exponential)
    warmup: float = 2.0  # seconds before the measured window
    duration: float = 20.0  # seconds of the measured window
    seed: int = 0
