"""The search for a capacity, the map and the findings.

Run: python -m pytest tests/lab/test_plan.py
"""

import json
from math import inf
from pathlib import Path

import pytest

from lab.benchmarks.findings import BEGIN, END, put
from lab.benchmarks.grid import Axes, begun, filled
from lab.benchmarks.grid_place import Place, answers
from lab.benchmarks.grid_view import law_errors
from lab.testbed.baselines import BASELINES, USUAL
from lab.testbed.cells import REGIMES
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.load.slo import Slo, holds
from lab.testbed.planner.acceptance import adapted, of_traces
from lab.testbed.planner.capacity_law import capacity
from lab.testbed.planner.capacity_search import largest, load_of, simulated_capacity
from lab.testbed.planner.mode_map import DEVICES, LINKS, PACES, points
from lab.testbed.planner.picture import draw
from lab.testbed.planner.planning import draft_wait
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from lab.testbed.planner.setting import Work, assumed, of_fleet, recorded
from lab.testbed.simulator import simulate
from lab.testbed.traces import ItemTrace, Proposal, TraceSet
from opensled.cli.main import main

GOOD = RecordedDrafts("tiny", "0.8")


@pytest.fixture(scope="module")
def work() -> Work:
    return assumed(0.7)


def place(device: str = "orin-nano-super", link: str = "wifi-good") -> Fleet:
    return Fleet(REGIMES["hub"], (Group(1, device, link),))


# -- capacity by simulation -------------------------------------------------------------------------------


@pytest.mark.parametrize("guess", [1, 5, 37, 38, 60, 100, 1000])
def test_the_search_finds_the_largest_number_that_holds(guess: int) -> None:
    asked: list[int] = []

    def up_to_37(users: int) -> bool:
        asked.append(users)
        return users <= 37

    assert largest(up_to_37, guess, most=100) == 37
    assert len(asked) == len(set(asked))
    assert max(asked) <= 100
    assert largest(lambda users: False, guess, most=100) == 0
    assert largest(lambda users: True, guess, most=100) == 100
    assert largest(up_to_37, 31, most=100, least=30) == 37


def test_a_small_gain_is_asked_for_with_one_question() -> None:
    asked: list[int] = []
    largest(lambda users: bool(asked.append(users)), 31, most=100, least=30)
    assert asked == [31]


def perfect_traces() -> TraceSet:
    text = tuple(range(10, 34))
    drafts = [text[place:] for place in range(len(text))]
    proposals = tuple(Proposal(ids, (0.9,) * len(ids)) for ids in drafts)
    return TraceSet("t", "d", {}, (ItemTrace("i", (1, 2), text, "eos", proposals, text),))


def test_a_simulated_capacity_holds_and_one_user_more_does_not() -> None:
    server = Server(accelerator="agx-orin", weight_bits=8, context=8192)
    fleet = BASELINES["centralized"](Fleet(server, (Group(1, "laptop-cpu", "ethernet"),)))
    traces, pace = perfect_traces(), 10
    found = simulated_capacity(fleet, traces, pace, guess=5)
    assert 0 < found.users < server.cost.sessions_that_fit(8192)
    for users, good in ((found.users, True), (found.users + 1, False)):
        assert holds(simulate(fleet.of_users(users), traces, load_of(pace)), Slo(pace)) is good
    expected = capacity(of_fleet(place(), recorded(traces)), "centralized", 0, pace)
    assert found.users < expected.users  # 8k of context where the regime has 1k


@pytest.mark.long
def test_the_grid_asks_every_baseline_and_sets_the_law_beside_it() -> None:
    axes = Axes(regimes=("hub",), links=("wifi-good",), devices=("laptop-cpu", "pi-5"), paces=(20,))
    grid = json.loads(json.dumps(filled(begun(axes, GOOD), lambda: None, 1)))
    assert grid["label"] == "simulated"
    assert [point["device"] for point in grid["points"]] == ["laptop-cpu", "pi-5"]
    fast, slow = (point["capacity"] for point in grid["points"])
    assert set(fast) == {*USUAL, "opensled-device"} - {"device-only"}
    assert fast["server-sd"] == slow["server-sd"] > 0  # it drafts, and a plain step of 55 ms is too slow
    assert fast["centralized"] == 0
    assert all(point["law"].keys() == fast.keys() for point in grid["points"])
    assert "| server-sd |" in law_errors(grid)


def test_adapted_drafts_are_right_at_their_rate() -> None:
    traces = TraceSet("t", "d", {}, perfect_traces().items * 40)
    found = of_traces(adapted(traces, 0.8))
    assert found.first == pytest.approx(0.8, abs=0.04)
    assert adapted(traces, 0.8) == adapted(traces, 0.8)
    assert of_traces(adapted(traces, 0.8), confidence=0.5).tokens == found.tokens


@pytest.mark.long
def test_sled_wins_with_adapted_drafts_at_a_hub_with_much_kv_to_read() -> None:
    alone = answers(Place("hub-8k", "wifi-good", 10, GOOD))
    drafting = answers(Place("hub-8k", "wifi-good", 10, GOOD, "laptop-cpu"))
    users = {each.baseline: each.users for each in (*alone, *drafting)}
    assert users["sled-static"] > 2 * users["centralized"] > 0
    assert users["sled-continuous"] > users["server-sd"]
    assert users["opensled"] >= 0.9 * users["sled-continuous"]


# -- the map ----------------------------------------------------------------------------------------------


def test_a_server_waits_longer_for_devices_that_take_longer(work: Work) -> None:
    near = draft_wait(of_fleet(place("laptop-cpu", "ethernet"), work), 1)
    far = draft_wait(of_fleet(place("pi-5", "lte"), work), 8)
    assert near == Server().draft_wait
    assert far == pytest.approx(1.5 * (8 / 21 + 0.0566), abs=0.05)


def test_the_map_has_every_place_and_a_reason_for_each(work: Work) -> None:
    found = points([REGIMES["hub"]], work)
    assert len(found) == len(DEVICES) * len(LINKS) * len(PACES)
    for point in found:
        assert point.gain >= 1
        assert (point.mode == "centralized") <= (point.gain == 1)
        assert bool(point.mode) == bool(point.users)
    assert any(point.gain == inf for point in found)


@pytest.mark.parametrize("name", [pytest.param("map.png", marks=pytest.mark.long), "map.svg"])
def test_the_map_becomes_a_picture(name: str, tmp_path: Path, work: Work) -> None:
    draw(points([REGIMES["hub"]], work), tmp_path / name, "a test")
    head = (tmp_path / name).read_bytes()[:200]
    assert b"PNG" in head if name.endswith("png") else b"svg" in head


def test_the_command_draws_the_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "map.png"
    assert main(["plan", "--json", "--map", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)
    assert path.stat().st_size > 10_000
    assert main(["plan", "--map", str(tmp_path / "none" / "own.png")]) == 2
    assert "there is no folder" in capsys.readouterr().err


# -- findings ---------------------------------------------------------------------------------------------


def test_findings_replace_what_stands_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    put("new", page)
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
