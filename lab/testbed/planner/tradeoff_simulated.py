"""The trade-off in the simulator: what policy `goodput` makes of the same users.

Only devices draft, as in the law that it is compared with.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hw_profiles.profiles import MESSAGE
from lab.testbed.baselines import BASELINES, OPENSLED_DEVICES
from lab.testbed.fleet import Fleet
from lab.testbed.load.records import RequestRecord
from lab.testbed.load.slo import measured, paces
from lab.testbed.planner.capacity_search import load_of
from lab.testbed.planner.token_cost import GB, HOUR_S, PlanPrices
from lab.testbed.simulator import LABEL, simulate_users
from lab.testbed.traces import TraceSet

MOST = 64  # users who are simulated in some seconds
KWH_J = 3.6e6


@dataclass(frozen=True)
class SimulatedPoint:
    """A server with so many users, all of whom were promised a pace."""

    users: int
    tokens_per_s: float  # of each user, on average
    slowest_tokens_per_s: float  # of the slowest user
    busy: float  # share of time in which the target is in a step
    drafted_per_token: float  # tokens that devices draft for each committed one
    usd_per_million_tokens: float  # whole hours of the accelerator are paid, as by the law
    usd_per_million_tokens_used: float  # its time in steps alone is paid
    joules_per_token: float  # idle power included; the law counts it as busy all the time

    def as_json(self) -> dict[str, Any]:
        numbers = {name: round(value, 4) for name, value in vars(self).items() if isinstance(value, float)}
        return {"label": LABEL, **vars(self), **numbers}


def simulated_point(fleet: Fleet, traces: TraceSet, pace: float, prices: PlanPrices) -> SimulatedPoint:
    """For the users of `fleet`, whose devices are all of one kind."""
    asked = BASELINES[OPENSLED_DEVICES](fleet).wanting(pace)
    load = load_of(pace)
    run = simulate_users(asked, traces, load, range(asked.users)).result
    rate, records = run.server.tokens / load.duration, measured(run)
    busy = min(1.0, run.server.busy_s / (run.end - run.start))
    # What answers took of devices and messages is scaled to the tokens/s of the measured window.
    drafted = _per_token(records, _drafted)
    drafting = rate * drafted * prices.device.draft(asked.groups[0].draft).draft_s(1)
    device_w = prices.device.busy_w.typical * drafting
    server_usd_s = prices.usd_hour / HOUR_S
    other_usd_s = device_w * prices.kwh_usd / KWH_J
    other_usd_s += rate * _per_token(records, _messages) * MESSAGE / GB * prices.gb_usd
    each = paces(run).values()
    return SimulatedPoint(
        users=asked.users,
        tokens_per_s=fmean(each),
        slowest_tokens_per_s=min(each),
        busy=busy,
        drafted_per_token=drafted,
        usd_per_million_tokens=1e6 * (server_usd_s + other_usd_s) / rate,
        usd_per_million_tokens_used=1e6 * (server_usd_s * busy + other_usd_s) / rate,
        joules_per_token=(_server_w(asked, busy) + device_w) / rate,
    )


def _server_w(fleet: Fleet, busy: float) -> float:
    """What the accelerator draws; a profile without `idle_w` counts as 0 W between steps."""
    profile = fleet.server.cost.accelerator
    idle_w = profile.idle_w.typical if profile.idle_w else 0.0
    return idle_w + (profile.busy_w.typical - idle_w) * busy


def _per_token(records: list[RequestRecord], counted: Callable[[RequestRecord], int]) -> float:
    return sum(map(counted, records)) / max(1, sum(record.tokens for record in records))


def _drafted(record: RequestRecord) -> int:
    """Those that stand in the text, and those that do not."""
    return sum(each.accepted for each in record.rounds) + record.wasted


def _messages(record: RequestRecord) -> int:
    return len(record.arrivals) + len(record.rounds)
