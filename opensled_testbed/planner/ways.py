"""Who may draft for a target: what each way gives a user, by simulation, and how many users it holds, by the law.

In all ways policy `goodput` decides, for each user and step, whether a draft is worth its time. So a way is never worse
by much than the server alone; where it is, its drafts cost time to try, or memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from opensled_testbed.baselines import BASELINES, SERVER_SD, with_head
from opensled_testbed.config import MODEL
from opensled_testbed.fleet import Fleet
from opensled_testbed.load.load import Load
from opensled_testbed.planner.capacity_law import Capacity, Setting, best, fastest, kv_fits
from opensled_testbed.planner.planning import WORTH_IT
from opensled_testbed.simulator import simulate
from opensled_testbed.traces import TraceSet

ALONE, DEVICES, SERVER, BOTH = WAYS = ("alone", "devices", "server", "both")  # the simplest first
BESIDE = (SERVER, BOTH)  # with a draft in the accelerator's memory
_BASELINES = dict(zip(WAYS, ("centralized", "opensled-device", "opensled-server", "opensled")))
# Tokens that all users of a simulation read together, and each of them at least: some dozens of answers, so that
# hard and easy ones are there in their shares, and one whole answer
ALL_READ, EACH_READS = 6000, 100

Rates = dict[str, float | None]  # tokens/s of each user by way; None = no room


def best_way(values: dict[str, float] | dict[str, int] | Rates) -> str:
    """The simplest way that is within WORTH_IT of the best."""
    known = {way: value for way, value in values.items() if value is not None}
    top = max(known.values())
    return next(way for way in WAYS if way in known and known[way] * WORTH_IT >= top)


def simulated_rates(fleet: Fleet, setting: Setting, traces: TraceSet, users: int, drafter: str = MODEL) -> Rates:
    """Tokens/s of each of `users` who ask again as soon as an answer ends; their wait for its first token counts."""
    pace = fastest(setting, "centralized", users)[0]
    load = Load(warmup=EACH_READS / pace, duration=max(EACH_READS, ALL_READ / users) / pace)

    def rate(way: str) -> float | None:
        if users > places(setting, way):
            return None
        baseline = BASELINES[_BASELINES[way]]
        if way in BESIDE and drafter != MODEL:
            baseline = with_head(baseline, drafter)
        run = simulate(baseline(fleet.of_users(users)), traces, load)
        return run.server.tokens / load.duration / users

    return {way: rate(way) for way in WAYS}


def places(setting: Setting, way: str) -> int:
    """Users whose KV fits; 0 where the draft has no profile beside the target."""
    if way in BESIDE and setting.draft_cost is None:
        return 0
    return kv_fits(setting, SERVER_SD if way in BESIDE else "centralized")


def held(setting: Setting, pace: float) -> dict[str, Capacity]:
    """By way, the mode that the server takes at `pace` tokens/s, with the users whom it holds."""
    plain = best(setting, "centralized", pace)
    devices = _more(plain, best(setting, "sled-continuous", pace))
    if setting.draft_cost is None:
        return {ALONE: plain, DEVICES: devices}
    beside = _beside(setting, plain)
    server = _more(beside, best(setting, SERVER_SD, pace))
    return {ALONE: plain, DEVICES: devices, SERVER: server, BOTH: _more(server, _beside(setting, devices))}


def _more(simple: Capacity, other: Capacity) -> Capacity:
    return other if other.users > simple.users else simple


def _beside(setting: Setting, found: Capacity) -> Capacity:
    """The same with a draft in memory that is not used."""
    fits = kv_fits(setting, SERVER_SD)
    return replace(found, users=min(found.users, fits), kv_fits=fits)


@dataclass(frozen=True)
class AlwaysDrafting:
    """Rounds of devices, or of the server, that draft whether it pays or not, with their best length."""

    mode: str
    tokens_per_s: float  # of each user
    draft_length: int
    round_s: float
    tokens_per_round: float


def always_drafting(setting: Setting, mode: str, users: int) -> AlwaysDrafting:
    """By the law: what modes `sled-continuous` and `server-sd` give each of `users`."""
    rate, length = fastest(setting, mode, users)
    tokens = setting.acceptance.tokens[length]
    return AlwaysDrafting(mode, rate, length, tokens / rate if rate else 0.0, tokens)


def shared(users: int, machines: int) -> int:
    """Users on the fullest of some machines."""
    return ceil(users / machines)
