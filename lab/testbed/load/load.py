"""What is asked, and when: items, arrival processes, and how long a run warms up and measures.

Random numbers belong to a user or to the arrival process, never to a run: every baseline meets the same load.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from opensled.core.errors import UsageError
from opensled.core.messages import ChatMessage, SamplingParams


@dataclass(frozen=True)
class Item:
    """One request. Its text is decided by prompt and seed alone, not by the drafter."""

    id: str
    prompt: str | tuple[ChatMessage, ...] | tuple[int, ...]
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    task: str = ""
    answer: str = ""  # what a right answer says, where that can be checked
    ignore_eos: bool = False
    turns: tuple[str, ...] = ()  # what the user of a chat says next, after each answer

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            self.temperature, seed=self.seed, max_tokens=self.max_tokens, ignore_eos=self.ignore_eos
        )


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


Asked = TypeVar("Asked")  # an Item, or whatever a simulator knows of one


def due_times(load: Load) -> Iterator[float]:
    """When requests are due, from 0 to the end of the measured window, for the open arrival processes.

    The n-th of them is asked by user n modulo the number of users, also while earlier answers are under way.
    """
    end = load.warmup + load.duration
    if load.arrivals == "trace":
        yield from (time for time in sorted(load.trace) if time < end)
        return
    assert load.arrivals in ("poisson", "bursty") and load.rate > 0 and load.burstiness > 0
    rng, now = random.Random(f"arrivals {load.seed}"), 0.0
    shape = load.burstiness if load.arrivals == "bursty" else 1.0
    while (now := now + rng.gammavariate(shape, 1 / (load.rate * shape))) < end:
        yield now


def start_of(user: int, users: int, load: Load) -> float:
    """When a user of `closed` asks first: one after another within the warm-up, so that users are not in lock step."""
    return load.warmup * user / users


def thinking(user: int, load: Load) -> Iterator[float]:
    """Seconds that a user thinks between an answer and the next request."""
    rng = random.Random(f"thinking {load.seed} {user}")
    while True:
        yield rng.expovariate(1 / load.think) if load.think else 0.0


def asked_by(user: int, items: Sequence[Asked], load: Load) -> Iterator[Asked]:
    """What a user asks, without end: all items in an order of that user, and again in another one."""
    assert items
    rng = random.Random(f"items {load.seed} {user}")
    while True:
        yield from rng.sample(items, len(items))


def read_trace(path: Path) -> tuple[float, ...]:
    """Times of arrival in seconds, one a line (a line may go on after a comma); the first one becomes 0."""
    try:
        lines = [line.split(",")[0].strip() for line in path.read_text("utf-8-sig").splitlines()]
        times = sorted(float(line) for line in lines if line)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no trace of arrival times, in seconds, one a line: {error}") from None
    if not times:
        raise UsageError(f"{path} holds no arrival times")
    return tuple(time - times[0] for time in times)
