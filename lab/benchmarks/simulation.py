"""How fast the simulator is: 10,000 devices at 16 verifiers, used as people use them, and as hard as can be."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from lab.benchmarks.figure import Comparison, Figure
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.load.load import Load
from lab.testbed.provenance import SEED
from lab.testbed.recordings import BUNDLED
from lab.testbed.simulator import simulate_parts
from lab.testbed.traces import TraceSet, read_traces

DEVICES, VERIFIERS, WORKERS = 10_000, 16, 2
THINK_S = 600.0  # an assistant that is asked every ten minutes
DUTY, SATURATED, REAL = "a question every 10 minutes", "saturated", "real time"
REQUIRED = 100.0


@dataclass(frozen=True)
class Speed:
    """One run of all verifiers."""

    load: Load
    wall_s: float
    events: int
    requests: int
    tokens: int  # committed within the measured window

    @property
    def factor(self) -> float:
        """Simulated seconds in one real second."""
        return (self.load.warmup + self.load.duration) / self.wall_s


def measure(quick: bool) -> Figure:
    """Two duty cycles."""
    devices, repeats = (200, 1) if quick else (DEVICES, 3)
    traces = read_traces(BUNDLED)
    runs: dict[str, list[Speed]] = {name: [] for name in LOADS}
    for _ in range(repeats):
        for name, load in LOADS.items():
            runs[name].append(_speed(devices, traces, load))
    samples = {name: [run.factor for run in each] for name, each in runs.items()}
    return Figure(
        title="Simulator",
        unit="simulated s/s",
        more_is_better=True,
        compared=(
            f"Simulated seconds in one real second: {devices} devices (a quarter each Pi 5 on LTE, Orin Nano Super on "
            f"Wi-Fi, laptop on 5G, AGX Orin on Ethernet) at {VERIFIERS} verifiers (dense 8B on an H200, with 1,024 "
            f"positions held already), policy `fcfs`, drafts of 4 from the packaged traces, on {WORKERS} processes "
            f"whose start is within the time; against real time. Once each user thinks {THINK_S:g} s on average "
            "between an answer and the next question, once the user asks again at once."
        ),
        loses=(
            "Saturated: every round of every device is some events of Python, and no fleet of this size is simulated "
            f"{REQUIRED:g} times faster than it runs."
        ),
        samples={**samples, REAL: [1.0] * repeats},
        ratios=(Comparison(DUTY, DUTY, REAL, REQUIRED), Comparison(SATURATED, SATURATED, REAL)),
        facts={"seed": SEED} | {name: _facts(each) for name, each in runs.items()},
    )


LOADS = {
    DUTY: Load(think=THINK_S, warmup=THINK_S, duration=2 * THINK_S, seed=SEED),
    SATURATED: Load(warmup=2.0, duration=4.0, seed=SEED),
}


def fleet(devices: int) -> Fleet:
    """A quarter each of four kinds; the KV of all of them is resident at once on 16 accelerators."""
    kinds = (
        ("pi-5", "lte"),
        ("orin-nano-super", "wifi-good"),
        ("laptop-cpu", "5g"),
        ("agx-orin", "ethernet"),
    )
    groups = tuple(Group(1, device, link) for device, link in kinds)
    return Fleet(Server(accelerator="h200", target="dense-8b", context=1024), groups).of_users(devices)


def _speed(devices: int, traces: TraceSet, load: Load) -> Speed:
    started = time.perf_counter()
    parts = simulate_parts(fleet(devices), VERIFIERS, traces, load, workers=WORKERS)
    wall_s = time.perf_counter() - started
    return Speed(
        load,
        wall_s,
        sum(part.events for part in parts),
        sum(len(part.result.requests) for part in parts),
        sum(part.result.server.tokens for part in parts),
    )


def _facts(runs: list[Speed]) -> dict[str, float]:
    """Of one load; the runs differ only in their time."""
    first = runs[0]
    return {
        "simulated seconds": first.load.warmup + first.load.duration,
        "events": first.events,
        "events/s": round(statistics.median(run.events / run.wall_s for run in runs)),
        "requests": first.requests,
        "tokens/s of the fleet": round(first.tokens / first.load.duration, 1),
    }
