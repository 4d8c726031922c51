"""Capacity by bisection in the simulator: the largest number of users of whom nearly all get their pace."""

from collections.abc import Callable
from dataclasses import dataclass

from lab.testbed.fleet import Fleet
from lab.testbed.load.load import Load
from lab.testbed.load.slo import Slo, holds
from lab.testbed.planner.acceptance import READ
from lab.testbed.simulator import simulate
from lab.testbed.traces import TraceSet

MOST = 512  # users that are looked for at most; a server with more of them is a matter of replicas
WARMUP_TOKENS = 40  # that a user reads before the window, at the pace that is asked: more than a usual answer
WINDOW_TOKENS = READ  # and within it
EXACT = 0.02  # share of a capacity to which it is found; below 50 users it is exact
STEP = 1.15  # factor from one guess to the next, until one holds and one does not


@dataclass(frozen=True)
class Found:
    """A capacity and what it took to find it."""

    users: int
    runs: int


def load_of(pace: float, seed: int = 0) -> Load:
    """All users read all the time; the window has some answers of each user, however slow.

    The seed alone decides who asks what and when: every baseline and every number of users meets the same load.
    """
    return Load(warmup=WARMUP_TOKENS / pace, duration=WINDOW_TOKENS / pace, seed=seed)


def simulated_capacity(
    fleet: Fleet, traces: TraceSet, pace: float, guess: int, *, least: int = 0, most: int = MOST
) -> Found:
    """Of `fleet`, which already is a baseline's; `least` is known to hold, and more than `most` is not looked for.

    Never more than the server has KV for.
    """
    load, runs = load_of(pace), 0

    def held(users: int) -> bool:
        nonlocal runs
        runs += 1
        return holds(simulate(fleet.of_users(users), traces, load), Slo(pace))

    fits = fleet.server.sessions_that_fit
    users = largest(held, guess, min(most, fits), least)
    return Found(users, runs)


def largest(holds: Callable[[int], bool], guess: int, most: int, least: int = 0) -> int:
    """The largest number up to `most` that holds, where smaller ones do as well; `least` holds unasked.

    `guess` is where the search begins: from there in growing steps to both sides, then by bisection until EXACT. Each
    number is asked at most once.
    """
    low, high = least, most + 1  # low holds, high does not
    asked = min(max(low + 1, guess), most)
    while high - low > max(1, EXACT * low):
        good = holds(asked)
        low, high = (asked, high) if good else (low, asked)
        asked = _next(low, high, least, most)
    return low


def _next(low: int, high: int, least: int, most: int) -> int:
    """Where to ask next: further on while one side is open, else in the middle."""
    if high > most:
        return min(most, max(low + 1, round(low * STEP)))
    if low == least:
        return max(low + 1, min(high - 1, round(high / STEP**2)))
    return (low + high) // 2
