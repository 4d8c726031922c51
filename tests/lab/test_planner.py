"""The planner's law by hand and in its directions; the search for a capacity, the map and the findings."""

import json
from dataclasses import replace
from math import inf

import pytest

from hw_profiles.profiles import AcceleratorProfile, DraftSpeed, LinkProfile, Quantity, TargetShape
from hw_profiles.step_cost import TargetCost
from lab.benchmarks.findings import BEGIN, END, put
from lab.benchmarks.grid import Axes, begun, filled
from lab.benchmarks.grid_place import Place, answers
from lab.benchmarks.grid_view import law_errors
from lab.testbed.baselines import BASELINES, USUAL
from lab.testbed.cells import REGIMES
from lab.testbed.emulation.draft_head import sessions_beside
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.load.slo import Slo, holds
from lab.testbed.planner import capacity_law as law
from lab.testbed.planner import trip
from lab.testbed.planner.acceptance import LENGTHS, adapted, by_place, of_traces
from lab.testbed.planner.binding import what_binds
from lab.testbed.planner.capacity_law import Setting, best, capacity
from lab.testbed.planner.capacity_search import largest, load_of, simulated_capacity
from lab.testbed.planner.mode_map import DEVICES, LINKS, PACES, points
from lab.testbed.planner.picture import draw
from lab.testbed.planner.planning import draft_wait
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from lab.testbed.planner.setting import Work, assumed, of_fleet, recorded
from lab.testbed.simulator import simulate
from lab.testbed.traces import ItemTrace, Proposal, TraceSet
from opensled.cli.main import main
from tests.lab.made_traces import perfect_traces, place


def exactly(value: float) -> Quantity:
    return Quantity(value, value, value, "a test")


# A step reads 1 GB of weights at 100 GB/s: 10 ms. It computes 1 GFLOP a token at 1 TFLOP/s: 1 ms each.
SHAPE = TargetShape("t", "t", "a test", params=5e8, active_params=5e8, layers=1, kv_heads=1, head_dim=250)
GPU = AcceleratorProfile(
    id="g",
    name="g",
    memory_gib=2,
    usable_memory=exactly(1),
    bandwidth_gb_s=exactly(100),
    tflops=exactly(1),
    step_overhead_ms=exactly(0),
    hour_usd=exactly(1),
    busy_w=exactly(100),
    measured=False,
)
LINK = LinkProfile("l", "l", exactly(10), exactly(10), exactly(1e9), exactly(1e9), exactly(0), 1)


def setting(
    acceptance: float = 0.5, rtt_ms: float = 10, decode_per_s: float = 100, context: int = 1
) -> Setting:
    """10 ms a step up to 10 tokens, 1 ms for each token beyond; a position of KV is read in 10 ns."""
    speed = DraftSpeed("d", exactly(decode_per_s), exactly(1000))
    link = replace(LINK, rtt_p50_ms=exactly(rtt_ms), rtt_p99_ms=exactly(rtt_ms))
    kinds = by_place(acceptance)
    return Setting(
        TargetCost(GPU, SHAPE), None, speed, link, context, context, kinds, kinds, max_tokens=10_000
    )


# -- acceptance -------------------------------------------------------------------------------------------


def test_acceptance_by_place_is_the_sum_of_products():
    assert by_place(0.5).tokens[:4] == (1, 1.5, 1.75, 1.875)
    found = by_place(0.75, 0.5)
    assert found.tokens[:4] == (1, 1.75, 2.125, 2.3125)
    assert found.drafted[3] == 3
    assert len(found.tokens) == len(LENGTHS)


def item(text: tuple[int, ...], *drafts: tuple[int, ...], sure: float = 0.9) -> ItemTrace:
    proposals = tuple(Proposal(ids, (sure,) * len(ids)) for ids in drafts)
    return ItemTrace("i", (1, 2), text, "eos", proposals, text)


def test_recorded_drafts_are_replayed_round_by_round():
    # k = 2: (5, 6) of a text 5 6 7 8 is accepted whole, and 7 is the bonus; then 8, the last token, needs no draft.
    trace = item((5, 6, 7, 8), (5, 6), (6, 9), (7, 8), (8, 0))
    found = of_traces(TraceSet("t", "d", {}, (trace,)))
    assert found.tokens[0] == 1
    assert found.tokens[2] == 4 / 2
    assert found.drafted[2] == 2 / 2
    # k = 1: 5 and the bonus 6; then 7 and the bonus 8
    assert found.tokens[1] == 4 / 2
    assert found.drafted[1] == 2 / 2


def test_a_confidence_threshold_ends_blocks_before_doubtful_tokens():
    trace = item((5, 6, 7, 8), (5, 6), (6, 9), (7, 8), (8, 0), sure=0.4)
    found = of_traces(TraceSet("t", "d", {}, (trace,)), confidence=0.5)
    assert found.tokens == (1,) * len(LENGTHS)
    assert found.drafted == (0,) * len(LENGTHS)


def test_the_unlucky_user_gets_fewer_tokens_a_round_where_items_differ():
    good = item((5, 6, 7, 8) * 4, *[(n, m) for n, m in zip((5, 6, 7, 8) * 4, (6, 7, 8, 5) * 4)])
    bad = item((5, 6, 7, 8) * 4, *[(0, 0)] * 16)
    mixed = of_traces(TraceSet("t", "d", {}, (good, bad)))
    alike = of_traces(TraceSet("t", "d", {}, (good, good)))
    assert mixed.unlucky[2] < mixed.tokens[2]
    assert alike.unlucky[2] == pytest.approx(alike.tokens[2])


# -- the law by hand --------------------------------------------------------------------------------------


def test_centralized_holds_as_many_users_as_a_step_has_time_for():
    # A step over n > 10 sessions takes n ms (its KV is nothing): at 20 tokens/s it may take 50 ms.
    assert law.centralized(setting(), 0, pace=20) == pytest.approx(50, abs=1)
    assert law.centralized(setting(), 0, pace=101) == 0  # a step takes 10 ms


def test_sessions_take_turns_beyond_the_tokens_a_step_may_compute():
    # 20 tokens a step, 1 ms each: 1000 tokens/s however many users there are.
    assert law.centralized(replace(setting(), max_tokens=20), 0, pace=10) == pytest.approx(100, abs=1)


def test_a_lone_device_is_served_when_its_round_is_fast_enough():
    # k = 1: 10 ms draft, 10 ms round trip, 10 ms step: 30 ms for 1.5 tokens = 50 tokens/s.
    assert law.sled_continuous(setting(), 1, pace=49.9) >= 1
    assert law.sled_continuous(setting(), 1, pace=50.1) == 0


def test_devices_at_a_busy_server_wait_for_half_a_step_and_come_once_in_a_round():
    # k = 1 and 5 tokens/s: a round may take 300 ms. Away 20 ms, below a step, so T = 2 t and t = 150 ms: 75 sessions of
    # two positions a step, and twice as many users.
    assert law.sled_continuous(setting(), 1, pace=5) == pytest.approx(150, abs=2)
    # With 200 ms away it is T = 200 + 1.5 t: t = 66.7 ms, 33.3 sessions a step, and 300 / 66.7 times as many users.
    assert law.sled_continuous(setting(rtt_ms=190), 1, pace=5) == pytest.approx(150, abs=2)


def test_a_fixed_batch_waits_for_all_and_leaves_the_server_idle():
    # A round may take 300 ms, of which 200 ms pass before the batch is there: 100 ms for 2 positions of n users.
    assert law.sled_static(setting(rtt_ms=190), 1, pace=5) == pytest.approx(50, abs=1)


def test_a_draft_beside_the_server_costs_the_accelerator_its_steps():
    draft = TargetCost(GPU, replace(SHAPE, params=5e7, active_params=5e7))  # 1 ms a step up to 10 sessions
    beside = replace(setting(), draft_cost=draft)
    # n users: 0.1 n ms to draft one token, 2 n ms to verify; 300 ms at 5 tokens/s.
    assert law.server_sd(beside, 1, pace=5) == pytest.approx(300 / 2.1, abs=2)
    assert law.server_sd(setting(), 1, pace=5) == 0


def test_no_draft_is_plain_decoding():
    for pace in (5, 20, 60):
        plain = law.centralized(setting(), 0, pace)
        assert law.server_sd(replace(setting(), draft_cost=setting().cost), 0, pace) == pytest.approx(plain)


def test_kv_memory_caps_users_of_every_mode():
    # 2 GiB less 1 GB of weights, 1000 bytes a position, 100,000 positions each: 11 sessions.
    tight = setting(context=100_000)
    for mode in law.MODES:
        assert capacity(tight, mode, 1, pace=0.1).users <= 11
    found = best(tight, "centralized", pace=0.5)
    assert (found.users, found.kv_binds) == (11, True)
    assert what_binds(tight, found, 0.5) == "KV memory"


def test_a_draft_beside_the_target_takes_kv_room():
    with_draft = replace(setting(context=1000), draft_cost=TargetCost(GPU, SHAPE))
    assert law.kv_fits(with_draft, "server-sd") < law.kv_fits(with_draft, "centralized") / 2


# -- the law's directions ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def work() -> Work:
    return assumed(0.7)


@pytest.mark.parametrize("mode", law.MODES)
@pytest.mark.parametrize("regime", REGIMES)
def test_a_faster_pace_never_holds_more_users(mode, regime, work):
    found = [best(of_fleet(place(regime=regime), work), mode, pace) for pace in (2, 5, 10, 20, 40)]
    users, by_speed = [each.users for each in found], [each.by_speed for each in found]
    assert users == sorted(users, reverse=True)
    assert by_speed == sorted(by_speed, reverse=True)
    assert by_speed[0] > by_speed[-1]


@pytest.mark.parametrize("mode", ["sled-static", "sled-continuous"])
def test_longer_round_trips_and_slower_devices_never_hold_more(mode):
    far = [best(setting(rtt_ms=rtt), mode, 5).by_speed for rtt in (1, 10, 50, 100, 200, 400)]
    slow = [best(setting(decode_per_s=rate), mode, 5).by_speed for rate in (200, 50, 20, 10, 5)]
    assert far == sorted(far, reverse=True)
    assert slow == sorted(slow, reverse=True)
    assert far[0] > far[-1]
    assert slow[0] > slow[-1]


@pytest.mark.parametrize("mode", ["centralized", "server-sd"])
def test_what_the_server_does_alone_depends_on_neither_link_nor_device(mode, work):
    found = {
        best(of_fleet(place(device, link), work), mode, 10).users
        for device in ("pi-5", "laptop-cpu")
        for link in ("ethernet", "lte")
    }
    assert len(found) == 1


def test_what_binds_is_what_is_short():
    slow_device, far = setting(decode_per_s=8), setting(rtt_ms=190)
    assert what_binds(slow_device, best(slow_device, "sled-continuous", 10.3), 10.3) == "device"
    assert what_binds(far, best(far, "sled-static", 6), 6) == "link"
    assert what_binds(setting(), best(setting(), "centralized", 20), 20) == "compute"
    assert what_binds(setting(), best(setting(), "centralized", 200), 200) == "weights"
    full = replace(setting(), cost=replace(setting().cost, target=SHAPE.at(64)))
    assert what_binds(full, best(full, "centralized", 1), 1) == "no room"


def test_the_slowest_of_many_round_trips_lies_between_median_and_99th_percentile():
    link = replace(LINK, rtt_p50_ms=exactly(50), rtt_p99_ms=exactly(200))
    trips = [trip.slowest_s(link, sessions) for sessions in (1, 3, 10, 100, 1000)]
    assert trips == sorted(trips)
    assert trips[0] == pytest.approx(0.05, rel=1e-3)
    assert trips[3] == trips[4] == pytest.approx(0.2, rel=1e-3)
    assert 0.05 < trip.mean_s(link) < 0.1


# -- the search, the map and the findings -----------------------------------------------------------------------


GOOD = RecordedDrafts("tiny", "0.8")


def fleet_at(device: str = "orin-nano-super", link: str = "wifi-good") -> Fleet:
    return Fleet(REGIMES["hub"], (Group(1, device, link),))


# -- capacity by simulation -------------------------------------------------------------------------------


@pytest.mark.parametrize("guess", [1, 5, 37, 38, 60, 100, 1000])
def test_the_search_finds_the_largest_number_that_holds(guess):
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


def test_a_small_gain_is_asked_for_with_one_question():
    asked: list[int] = []
    largest(lambda users: bool(asked.append(users)), 31, most=100, least=30)
    assert asked == [31]


def test_a_simulated_capacity_holds_and_one_user_more_does_not():
    server = Server(accelerator="agx-orin", weight_bits=8, context=8192)
    fleet = BASELINES["centralized"](Fleet(server, (Group(1, "laptop-cpu", "ethernet"),)))
    traces, pace = perfect_traces(), 10
    found = simulated_capacity(fleet, traces, pace, guess=5)
    assert 0 < found.users < sessions_beside(server.cost, 8192)
    for users, good in ((found.users, True), (found.users + 1, False)):
        assert holds(simulate(fleet.of_users(users), traces, load_of(pace)), Slo(pace)) is good
    expected = capacity(of_fleet(fleet_at(), recorded(traces)), "centralized", 0, pace)
    assert found.users < expected.users  # 8k of context where the regime has 1k


@pytest.mark.long
def test_the_grid_asks_every_baseline_and_sets_the_law_beside_it():
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


def test_adapted_drafts_are_right_at_their_rate():
    traces = TraceSet("t", "d", {}, perfect_traces().items * 40)
    found = of_traces(adapted(traces, 0.8))
    assert found.first == pytest.approx(0.8, abs=0.04)
    assert adapted(traces, 0.8) == adapted(traces, 0.8)
    assert of_traces(adapted(traces, 0.8), confidence=0.5).tokens == found.tokens


@pytest.mark.long
def test_sled_wins_with_adapted_drafts_at_a_hub_with_much_kv_to_read():
    alone = answers(Place("hub-8k", "wifi-good", 10, GOOD))
    drafting = answers(Place("hub-8k", "wifi-good", 10, GOOD, "laptop-cpu"))
    users = {each.baseline: each.users for each in (*alone, *drafting)}
    assert users["sled-static"] > 2 * users["centralized"] > 0
    assert users["sled-continuous"] > users["server-sd"]
    assert users["opensled"] >= 0.9 * users["sled-continuous"]


# -- the map ----------------------------------------------------------------------------------------------


def test_a_server_waits_longer_for_devices_that_take_longer(work):
    near = draft_wait(of_fleet(fleet_at("laptop-cpu", "ethernet"), work), 1)
    far = draft_wait(of_fleet(fleet_at("pi-5", "lte"), work), 8)
    assert near == Server().draft_wait
    assert far == pytest.approx(1.5 * (8 / 21 + 0.0566), abs=0.05)


def test_the_map_has_every_place_and_a_reason_for_each(work):
    found = points([REGIMES["hub"]], work)
    assert len(found) == len(DEVICES) * len(LINKS) * len(PACES)
    for point in found:
        assert point.gain >= 1
        assert (point.mode == "centralized") <= (point.gain == 1)
        assert bool(point.mode) == bool(point.users)
    assert any(point.gain == inf for point in found)


def test_the_map_becomes_a_picture(tmp_path, work):
    draw(points([REGIMES["hub"]], work), tmp_path / "map.svg", "a test")
    assert b"svg" in (tmp_path / "map.svg").read_bytes()[:200]


def test_the_command_draws_the_map(tmp_path, capsys):
    path = tmp_path / "map.png"
    assert main(["plan", "--json", "--map", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)
    assert b"PNG" in path.read_bytes()[:200] and path.stat().st_size > 10_000
    assert main(["plan", "--map", str(tmp_path / "none" / "own.png")]) == 2
    assert "there is no folder" in capsys.readouterr().err


# -- findings ---------------------------------------------------------------------------------------------


def test_findings_replace_what_stands_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    put("new", page)
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
