"""What `--objective` maximises: by hand, in the plans of policy `goodput`, and from the options of a server.

Run: pytest tests/test_objectives.py
"""

from __future__ import annotations

import logging
from dataclasses import replace
from math import sqrt

import pytest

from hw_profiles import catalog
from hw_profiles.step_cost import HardwareProfile, Roofline
from opensled import config
from opensled.errors import NotFound, UsageError
from opensled_testbed.config import PlanConfig
from scheduler.estimates import Forecast
from scheduler.goodput.arms import NO_COSTS, RESPONSE, PromptLoad
from scheduler.goodput.assignment import DraftPlanner
from scheduler.goodput.objective import POWERS, SPEED, Consumption, Objective, Prices
from scheduler.goodput.policy import Goodput
from scheduler.goodput.state import GoodputState
from scheduler.plan import SessionView, Snapshot
from tests.policy_contract import COSTS, crowd, plain
from tests.policy_world import Habits, World
from verify_server.config import ServeConfig
from verify_server.costs import objective, tell_assumption

NOW, SECONDS = 100.0, 6
READS = HardwareProfile(256, Roofline(read_s=0.03, token_s=1e-6))  # tokens cost nothing
PRICES = Prices(3.6, busy_w=100, idle_w=20, device_w=10, kwh_usd=0.36, gb_usd=1)
HUB = Prices(0.09, busy_w=40, idle_w=9, device_w=20, kwh_usd=0.3)  # an AGX Orin, devices of 20 W
GOOD = Forecast(0.95, 0.95, delay_s=0.005, draft_s=0.005, jitter_s=0.002, drafts=50)
POOR = GOOD._replace(first=0.6, later=0.6)
every_objective = pytest.mark.parametrize("name", POWERS)


def drafting(id: int, forecast: Forecast = GOOD, pace: float = 0.0) -> SessionView:
    """A session whose device's draft of four has come."""
    times = {"waiting_since": NOW, "ready_since": NOW, "asked_since": NOW}
    known = {"uncomputed": 1, "draft": 4, "server_drives": False, "context": 50, "hint": 4}
    return SessionView(id, **known, **times, forecast=forecast, pace=pace)  # type: ignore[arg-type]


def settled(wanted: Objective, *sessions: SessionView) -> GoodputState:
    """What the policy has settled at when it has seen the same sessions for some seconds."""
    policy, memory = Goodput(0.25, wanted), None
    for earlier in range(SECONDS, -1, -1):
        memory = policy.plan(Snapshot(sessions, memory), READS, NOW - earlier).memory
    assert isinstance(memory, GoodputState)
    return memory


# -- by hand ------------------------------------------------------------------------------------------------

# The target is busy half of the time, two devices draft, and 100 messages of 110 bytes travel in a second.
USED = Consumption(busy=0.5, drafting=2, messages=100)


def test_money_is_the_targets_time_the_devices_power_and_the_traffic() -> None:
    expected = 0.5 * 3.6 / 3600 + 2 * 10 * 0.36 / 3.6e6 + 100 * 110 / 1e9
    for name in ("cost", "balanced"):
        assert Objective(name, PRICES).spent(USED) == pytest.approx(expected)


def test_power_is_the_servers_idle_and_busy_and_the_devices() -> None:
    assert Objective("energy", PRICES).spent(USED) == pytest.approx(20 + 80 * 0.5 + 2 * 10)


def test_values_by_hand() -> None:
    """40 tokens/s for four times what the thriftiest spends."""
    values = {name: Objective(name, PRICES).value(40, spent=8, least=2) for name in POWERS}
    assert values == {"speed": 40, "balanced": pytest.approx(20), "cost": 10, "energy": 10}


def test_balanced_orders_by_tokens_per_second_times_tokens_per_dollar() -> None:
    found = [(40.0, 8.0), (30.0, 5.0), (10.0, 0.9)]
    values = [Objective("balanced", PRICES).value(rate, spent, 0.9) for rate, spent in found]
    products = [rate * rate / spent for rate, spent in found]
    assert [value / values[0] for value in values] == pytest.approx(
        [sqrt(product / products[0]) for product in products]
    )


@pytest.mark.parametrize("name", ["balanced", "cost", "energy"])
def test_the_price_is_the_slope_of_the_value(name: str) -> None:
    wanted = Objective(name, PRICES)
    slope = (wanted.value(40, 8, 8) - wanted.value(40, 8 + 1e-6, 8)) / 1e-6
    assert wanted.price(40, 8) == pytest.approx(slope, rel=1e-4)


def test_what_costs_nothing_divides_nothing_by_zero() -> None:
    free = Objective("cost", Prices())
    spent = free.spent(USED)
    assert free.value(40, spent, spent) == 40


# -- speed is what it was -----------------------------------------------------------------------------------


def test_speed_counts_tokens_and_promises_and_nothing_else() -> None:
    """The value before there were objectives: the sum of rates, and on top the promises kept; to the bit."""
    for seed, cost in enumerate(COSTS):
        sessions = crowd(seed, 20, NOW).sessions
        planner = DraftPlanner(sessions, HardwareProfile(512, cost), PromptLoad(), Objective("speed", PRICES))
        kept, best = planner.best(0, NO_COSTS)
        uniform = [planner.assignment(arm) for arm in range(7)]
        starts = (kept, max(uniform, key=lambda one: one.rate + one.promised))
        found = uniform + [planner.assignment(RESPONSE, planner.marginal_costs(start)) for start in starts]
        most = max(found, key=lambda one: one.rate + one.promised)
        assert all(one.value == one.rate and one.worth == one.rate + one.promised for one in (kept, best))
        expected = most if most.worth > kept.worth + 0.03 * kept.rate else kept
        assert (best.rule, best.arms.tolist()) == (expected.rule, expected.arms.tolist())


def test_prices_mean_nothing_to_speed() -> None:
    for seed in range(4):
        seen = crowd(seed, 30, NOW)
        plans = [Goodput(0.25, Objective("speed", each)).plan(seen, READS, NOW) for each in (PRICES, HUB)]
        assert plain(plans[0]) == plain(plans[1]) == plain(Goodput(0.25).plan(seen, READS, NOW))


# -- what the others choose ---------------------------------------------------------------------------------


def test_a_device_whose_drafts_are_poor_rests_for_energy_where_speed_lets_it_draft() -> None:
    crowded = [drafting(id, POOR) for id in range(1, 17)]
    assert min(settled(SPEED, *crowded).hints.values()) > 0
    assert set(settled(Objective("energy", HUB), *crowded).hints.values()) == {0}
    frugal = replace(HUB, device_w=0.5)  # the same drafts on a board that draws next to nothing
    assert min(settled(Objective("energy", frugal), *crowded).hints.values()) > 0


def test_each_session_answers_energy_by_its_own_drafts() -> None:
    """Beside good devices the poor ones rest: what they win is less than what they draw."""
    quick = GOOD._replace(draft_s=0.001)
    slow = POOR._replace(draft_s=0.006)
    planner = DraftPlanner(
        [drafting(1, quick), drafting(2, quick), drafting(3, slow), drafting(4, slow)],
        READS,
        PromptLoad(),
        Objective("energy", HUB),
    )
    start = planner.assignment(4)
    lengths = planner.by(RESPONSE, planner.marginal_costs(start))
    assert lengths[:2].min() > 0 and lengths[2:].tolist() == [0, 0]


def test_cost_takes_fewer_tokens_per_second_for_fewer_dollars() -> None:
    """A lone user's drafts leave the target idle meanwhile."""
    alone = drafting(1, POOR._replace(first=0.35, later=0.35, delay_s=0.02))
    fast, cheap = settled(SPEED, alone), settled(Objective("cost", HUB), alone)
    assert fast.hints == {1: 0} and cheap.hints[1] > 0
    assert cheap.rate < fast.rate


def test_dear_traffic_and_power_make_drafts_dearer() -> None:
    def lengths(prices: Prices) -> int:
        return settled(Objective("cost", prices), *[drafting(id) for id in range(1, 5)]).hints[1]

    assert lengths(HUB) > 0
    assert lengths(replace(HUB, kwh_usd=30.0)) == 0


# -- promises -----------------------------------------------------------------------------------------------


@every_objective
def test_a_promised_pace_is_kept_where_saving_would_break_it(name: str) -> None:
    """Without a promise `cost` and `energy` draft here, and commit 20 tokens/s; decoding commits 32."""
    poor = POOR._replace(first=0.35, later=0.35, delay_s=0.02)
    assert settled(Objective(name, HUB), drafting(1, poor, pace=25.0)).hints == {1: 0}
    without = settled(Objective(name, HUB), drafting(1, poor)).hints[1]
    assert bool(without) == (name in ("cost", "energy"))


@every_objective
def test_a_promise_holds_while_a_server_runs(name: str) -> None:
    """A lone user, whose drafts would save money and power: 22 tokens/s were promised, decoding brings 32."""

    def tokens_per_s(pace: float) -> float:
        world = World(Goodput(0.25, Objective(name, HUB)), READS, seed=5)
        user = world.join(Habits(right=0.6, link_s=0.03), tokens=200, pace=pace)
        world.run()
        return 200 / user.seconds

    assert tokens_per_s(22.0) >= 22.0
    assert (tokens_per_s(0.0) < 22.0) == (name != "speed")


# -- the options of a server --------------------------------------------------------------------------------


def test_prices_and_power_are_those_of_the_profiles() -> None:
    found = objective(ServeConfig(objective="energy", accelerator="agx-orin", device_profile="pi-5"))
    server, device = catalog.accelerator("agx-orin"), catalog.device("pi-5")
    assert server.idle_w is not None
    assert found == Objective(
        "energy",
        Prices(
            server.hour_usd.typical, server.busy_w.typical, server.idle_w.typical, device.busy_w.typical, 0, 0
        ),
    )
    own = ServeConfig(objective="cost", accelerator_usd_hour=2.0, kwh_usd=0.3, gb_usd=1.5)
    assert objective(own).prices.server_usd_hour == 2.0
    assert objective(own).prices.gb_usd == 1.5


def test_nothing_is_invented_where_a_number_is_missing() -> None:
    assert objective(ServeConfig()) == SPEED
    # Alone, a price only scales all costs.
    assert objective(ServeConfig(objective="cost")).prices.server_usd_hour == 1.0
    with pytest.raises(UsageError, match="--accelerator"):
        objective(ServeConfig(objective="energy"))
    with pytest.raises(UsageError, match="--accelerator-usd-hour"):
        objective(ServeConfig(objective="balanced", kwh_usd=0.3))
    with pytest.raises(NotFound, match="choose from"):
        objective(ServeConfig(objective="energy", accelerator="abacus"))


@pytest.mark.parametrize("value", ["nan", "inf", "1e400", "-1", "dear"])
@pytest.mark.parametrize("price", ["ACCELERATOR_USD_HOUR", "KWH_USD", "GB_USD"])
@pytest.mark.parametrize(("kind", "verb"), [(ServeConfig, "serve"), (PlanConfig, "plan")])
def test_a_price_is_a_finite_number(kind: type, verb: str, price: str, value: str) -> None:
    """An infinite one would make all plans worth the same."""
    with pytest.raises(UsageError, match=f"OPENSLED_{price}: "):
        config.resolve(kind, verb, {}, {f"OPENSLED_{price}": value}, [])


def test_an_assumed_power_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tell_assumption(ServeConfig())
        tell_assumption(ServeConfig(objective="energy", accelerator="h200", device_profile="pi-5"))
        assert not caplog.messages
        tell_assumption(ServeConfig(objective="energy", accelerator="h200"))
    assert "assumes that a device draws 20 W" in caplog.text


def test_a_command_is_refused_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    from opensled.cli import main

    assert main(["serve", "--model", "nowhere", "--objective", "energy"]) == 2
    assert "--accelerator ID" in capsys.readouterr().err
    assert main(["serve", "--model", "nowhere", "--objective", "thrift"]) == 2
