"""`opensled plan --curve`: the operating points of the law, what is taken of them, and the simulated server."""

import json
from dataclasses import replace

import pytest

from hw_profiles import catalog
from lab.testbed.config import PlanConfig
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.planner.acceptance import adapted
from lab.testbed.planner.capacity_law import Capacity
from lab.testbed.planner.command import draw_curve
from lab.testbed.planner.objective import POWERS, value
from lab.testbed.planner.setting import assumed, of_fleet
from lab.testbed.planner.token_cost import Cost, PlanPrices, cost_of
from lab.testbed.planner.tradeoff import FINE, OperatingPoint, TradeOff, best_point, trade_off
from lab.testbed.planner.tradeoff_simulated import simulated_point
from opensled.cli import config_layers
from opensled.cli.main import main
from opensled.core.errors import UsageError
from tests.lab.made_traces import perfect_traces

HUB = Fleet(
    Server(accelerator="agx-orin", weight_bits=8, context=8192), (Group(1, "orin-nano-super", "wifi-good"),)
)
SETTING = of_fleet(HUB, assumed(0.8))
PRICES = PlanPrices(0.09, kwh_usd=0.3, gb_usd=0.0, device=catalog.device("orin-nano-super"))
PLAN = ("plan", "--accelerator", "agx-orin", "--weight-bits", "8", "--context", "8192", "--acceptance", "0.8")


@pytest.fixture(scope="module")
def curve() -> TradeOff:
    return trade_off(SETTING, PRICES, 5.0)


def point(pace: float, usd: float, wh: float) -> OperatingPoint:
    return OperatingPoint(Capacity("centralized", 0, 1.0, 3, 3.0, 9), pace, Cost(usd, 0.0, wh))


# -- what is taken ------------------------------------------------------------------------------------------


def test_each_objective_takes_its_own_point():
    """Tokens/s; USD per million; joules; and tokens/s by USD: 20/4, 12/2, 10/1.9."""
    quick, middle, cheap, cool = point(20, 4, 9), point(12, 2, 8), point(10, 1.9, 7), point(10, 3, 5)
    found = (cool, cheap, middle, quick)
    assert best_point(found, "speed") is quick
    assert best_point(found, "balanced") is middle
    assert best_point(found, "cost") is cheap
    assert best_point(found, "energy") is cool
    assert best_point((), "speed") is None


def test_values_by_hand():
    """40 tokens/s for four times what the thriftiest spends."""
    values = {name: value(name, 40, 8) / value(name, 1, 2) for name in POWERS}
    assert values == {"speed": 40, "balanced": pytest.approx(20), "cost": 10, "energy": 10}
    assert {value(name, 40, 0.0) for name in POWERS} == {40}, "what costs nothing divides nothing by zero"


def test_of_two_offers_as_fast_the_cheaper_is_taken():
    assert best_point([point(20, 4, 9), point(20, 3, 9)], "speed") == point(20, 3, 9)


def test_a_token_costs_the_hour_the_drafting_and_the_traffic():
    """4 users of 10 tokens/s; 3.05 tokens of each 4 drafted ones at 50 a second and 20 W."""
    found, device = Capacity("sled-continuous", 4, 3.05, 4, 4.0, 9), SETTING.acceptance
    cost = cost_of(found, SETTING, PRICES._replace(gb_usd=2.0), 10.0)
    assert cost is not None
    joules = 20 * device.drafted[4] / 50 / 3.05
    usd = 0.09 / 3600 / 40 + joules / 3.6e6 * 0.3 + 2 * 110 / 3.05 / 1e9 * 2.0
    assert cost.usd_per_million_tokens == pytest.approx(1e6 * usd)
    assert cost.joules_per_token == pytest.approx(joules + 40 / 40)


# -- the curve ----------------------------------------------------------------------------------------------


def test_every_pick_keeps_the_promised_pace_and_is_the_best_of_those(curve):
    kept = [each for each in curve.points if each.pace >= 5.0 * (1 - 1e-9)]
    assert min(each.pace for each in kept) == pytest.approx(5.0)
    picks = curve.picks
    assert picks["speed"].pace == max(each.pace for each in kept)
    least = min(each.cost.usd_per_million_tokens for each in kept)
    assert picks["cost"].cost.usd_per_million_tokens == least
    assert picks["energy"].cost.joules_per_token == min(each.cost.joules_per_token for each in kept)
    assert picks["cost"].pace <= picks["balanced"].pace <= picks["speed"].pace


def test_the_envelope_has_the_cheapest_draft_length_of_each_pace(curve):
    line = curve.envelope("sled-continuous", lambda cost: cost.usd_per_million_tokens)
    assert [each.pace for each in line] == sorted({each.pace for each in line})
    assert line[1].pace == pytest.approx(FINE * line[0].pace)
    for each in line:
        rivals = [other for other in curve.points if other.found.mode == "sled-continuous"]
        at = [other.cost.usd_per_million_tokens for other in rivals if other.pace == each.pace]
        assert each.cost.usd_per_million_tokens == min(at)


@pytest.mark.parametrize("price", ["nan", "inf", "1e400", "-1", "dear"])
@pytest.mark.parametrize("name", ["ACCELERATOR_USD_HOUR", "KWH_USD", "GB_USD"])
def test_a_price_is_a_finite_number(name, price):
    """An infinite one would make all plans worth the same."""
    with pytest.raises(UsageError, match=f"OPENSLED_{name}: "):
        config_layers.resolve(PlanConfig, "plan", {}, {f"OPENSLED_{name}": price}, [])


# -- the command --------------------------------------------------------------------------------------------


def test_the_curve_is_drawn_with_its_numbers_beside_it(tmp_path, capsys):
    path = tmp_path / "curve.png"
    asked = PlanConfig(accelerator="agx-orin", weight_bits=8, context=8192, acceptance="0.8", pace=5, users=2)
    draw_curve(replace(asked, curve=str(path)), "agx-orin", path)
    numbers = json.loads((tmp_path / "curve.json").read_text())
    assert path.stat().st_size > 10_000
    (server,) = numbers["simulated"]
    assert (server["label"], server["users"]) == ("simulated", 2)
    assert {each["label"] for each in numbers["points"]} == {"derived"}
    assert set(numbers["picks"]) == {"speed", "balanced", "cost", "energy"}
    assert "curve.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--curve", "curve.pdf"), "--curve: 'curve.pdf' must end in .png or .svg"),
        (("--curve", "no/such/curve.png"), "there is no folder"),
        (("--kwh-usd", "0.3"), "--kwh-usd goes with --curve"),
    ],
)
def test_mistakes_are_named(flags, words, capsys):
    assert main([*PLAN, *flags]) == 2
    assert words in capsys.readouterr().err


def test_nothing_is_drawn_where_nobody_can_be_served(tmp_path, capsys):
    curve = str(tmp_path / "curve.svg")
    asked = ["plan", "--acceptance", "0.8", "--curve", curve]
    assert main([*asked, "--accelerator", "agx-orin", "--context", "100000000"]) == 2
    assert "nothing to draw" in capsys.readouterr().err
    assert main(asked) == 2
    assert "--curve draws one accelerator: name it with --accelerator" in capsys.readouterr().err


# -- simulated ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_simulated_server_keeps_the_pace_and_saves_power_between_steps():
    """Ten users on a hub, whose devices draft 0.8 right."""
    point = simulated_point(HUB.of_users(10), adapted(perfect_traces(), 0.8), 5.0, PRICES)
    assert point.slowest_tokens_per_s >= 5.0 and point.drafted_per_token > 0
    assert point.usd_per_million_tokens_used <= point.usd_per_million_tokens
    assert point.as_json()["label"] == "simulated"
