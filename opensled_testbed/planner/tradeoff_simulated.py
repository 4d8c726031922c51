"""The trade-off in the simulator: what policy `goodput` makes of the same users under each objective of a server.

Only devices draft, as in the law that it is compared with.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from opensled_testbed.baselines import BASELINES, OPENSLED_DEVICES
from opensled_testbed.fleet import Fleet
from opensled_testbed.load.records import RequestRecord, RunResult
from opensled_testbed.load.slo import measured, paces
from opensled_testbed.planner.capacity_search import load_of
from opensled_testbed.planner.token_cost import HOUR_S, PlanPrices
from opensled_testbed.simulator import LABEL, simulate_users
from opensled_testbed.traces import TraceSet
from scheduler.goodput.objective import POWERS, Consumption, Objective, Prices
from scheduler.goodput.policy import Goodput

MOST = 64  # users who are simulated in some seconds


@dataclass(frozen=True)
class SimulatedPoint:
    """One objective of a server with so many users, all of whom were promised a pace."""

    objective: str
    users: int
    tokens_per_s: float  # of each user, on average
    slowest_tokens_per_s: float  # of the slowest user
    busy: float  # share of time in which the target is in a step
    drafted_per_token: float  # tokens that devices draft for each committed one
    usd_per_million_tokens: float  # whole hours of the accelerator are paid, as by the law
    usd_per_million_tokens_used: float  # its time in steps alone is paid, as a server counts
    joules_per_token: float  # idle power included; the law counts it as busy all the time

    def as_json(self) -> dict[str, Any]:
        numbers = {name: round(value, 4) for name, value in vars(self).items() if isinstance(value, float)}
        return {"label": LABEL, **vars(self), **numbers}


def simulated_points(fleet: Fleet, traces: TraceSet, pace: float, prices: PlanPrices) -> list[SimulatedPoint]:
    """Under each of POWERS, for the users of `fleet`, whose devices are all of one kind."""
    asked = BASELINES[OPENSLED_DEVICES](fleet).wanting(pace)
    return [_point(name, asked, traces, pace, prices) for name in POWERS]


def server_prices(fleet: Fleet, prices: PlanPrices) -> Prices:
    """As a server of that accelerator would be told them."""
    profile = fleet.server.cost.accelerator
    return Prices(
        server_usd_hour=prices.usd_hour,
        busy_w=profile.busy_w.typical,
        idle_w=profile.idle_w.typical if profile.idle_w else 0.0,
        device_w=prices.device.busy_w.typical,
        kwh_usd=prices.kwh_usd,
        gb_usd=prices.gb_usd,
    )


def _point(name: str, fleet: Fleet, traces: TraceSet, pace: float, prices: PlanPrices) -> SimulatedPoint:
    known = server_prices(fleet, prices)
    policy = Goodput(fleet.server.draft_wait, Objective(name, known))
    load = load_of(pace)
    run = simulate_users(fleet, traces, load, range(fleet.users), policy=policy).result
    rate = run.server.tokens / load.duration
    used = _consumption(run, rate, prices.device.draft(fleet.groups[0].draft).draft_s(1))
    money, power = Objective("cost", known), Objective("energy", known)
    idle_usd_s = (1 - float(used.busy)) * prices.usd_hour / HOUR_S
    each = paces(run).values()
    return SimulatedPoint(
        objective=name,
        users=fleet.users,
        tokens_per_s=fmean(each),
        slowest_tokens_per_s=min(each),
        busy=float(used.busy),
        drafted_per_token=_per_token(measured(run), _drafted),
        usd_per_million_tokens=1e6 * (money.spent(used) + idle_usd_s) / rate,
        usd_per_million_tokens_used=1e6 * money.spent(used) / rate,
        joules_per_token=power.spent(used) / rate,
    )


def _consumption(run: RunResult, rate: float, draft_s: float) -> Consumption:
    """Of the measured window; what answers took of devices and messages is scaled to its tokens/s."""
    records = measured(run)
    busy = min(1.0, run.server.busy_s / (run.end - run.start))
    return Consumption(
        busy, rate * draft_s * _per_token(records, _drafted), rate * _per_token(records, _messages)
    )


def _per_token(records: list[RequestRecord], counted: Callable[[RequestRecord], int]) -> float:
    return sum(map(counted, records)) / max(1, sum(record.tokens for record in records))


def _drafted(record: RequestRecord) -> int:
    """Those that stand in the text, and those that do not."""
    return sum(each.accepted for each in record.rounds) + record.wasted


def _messages(record: RequestRecord) -> int:
    return len(record.arrivals) + len(record.rounds)
