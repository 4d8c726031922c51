"""`opensled plan --hierarchy`: what three recorded tiers say, the rows, the words, the map and the mistakes."""

import json
import random
from pathlib import Path
from statistics import fmean

import pytest

from lab.testbed.config import PlanConfig
from lab.testbed.emulation.draft_head import sessions_beside
from lab.testbed.planner.hierarchy_drafts import VETTED, of_rates, of_recordings, tiers
from lab.testbed.planner.hierarchy_map import LOADS, points
from lab.testbed.planner.hierarchy_plan import along, capacity, make_hierarchy_plan, paths, site_of
from lab.testbed.planner.hierarchy_site import CLOUD, DEVICE, DRAFT, HUB, MIDDLE, TARGET
from lab.testbed.planner.hub_link import hub_rtt_s
from lab.testbed.tiers import Aside, TieredTrace, agreement
from lab.testbed.traces import Proposal, TraceSet
from opensled.cli.main import main

ALONE = ((TARGET, CLOUD),)
BESIDE = (*ALONE, (DRAFT, CLOUD))
DIRECT = (*ALONE, (DRAFT, DEVICE))
BY_HUB = (*ALONE, (MIDDLE, HUB))
THREE = (*BY_HUB, (DRAFT, DEVICE))
RATES = {"acceptance": "0.6", "hub_acceptance": 0.8, "draft_acceptance": 0.75}


def config(**changes: object) -> PlanConfig:
    usual = {"accelerator": "a100-80", "hub_model": "draft-1.5b", "hub_link": "20", **RATES}
    return PlanConfig(**{**usual, **changes})


# -- what recordings say ----------------------------------------------------------------------------------


def drawn(draw: random.Random, length: int = 60) -> TieredTrace:
    """A text of which the hub says 0.8 of the tokens. The device says 0.7 of the hub's, and no other."""
    text = tuple(draw.randrange(100, 200) for _ in range(length))
    asides = []
    for place in range(length):
        if draw.random() < 0.8:
            continue
        ids = tuple(300 + draw.randrange(100) for _ in range(20))
        drafts = tuple(each if draw.random() < 0.7 else 7 for each in (*ids[1:], 8))
        asides.append(Aside(place, ids, drafts, (0.5,) * len(ids)))
    hub = {aside.place: aside.ids[0] for aside in asides}
    said = [hub.get(place, text[place]) if draw.random() < 0.7 else 9 for place in range(length)]
    written = {aside.place: aside for aside in asides}
    ids = [_proposed(said, text, written, place) for place in range(length)]
    proposals = tuple(Proposal(each, (0.5,) * len(each)) for each in ids)
    return TieredTrace("i", (1, 2), text, "length", proposals, asides=tuple(asides))


def _proposed(
    said: list[int], text: tuple[int, ...], asides: dict[int, Aside], place: int
) -> tuple[int, ...]:
    """Eight draft tokens from a place: the text's up to the first other one, and then the hub's while it says these."""
    ids = [said[place]]
    while len(ids) < 8 and place + 1 < len(text) and ids[-1] == text[place]:
        place += 1
        ids.append(said[place])
    aside, offset = asides.get(place), 0
    while aside and len(ids) < 8 and ids[-1] == aside.ids[offset]:
        ids.append(aside.drafts[offset])
        offset += 1
    return tuple(ids + [9] * (8 - len(ids)))


def test_recorded_tiers_say_how_often_models_agree():
    draw = random.Random(2)
    found = of_recordings(TraceSet("t", "d", {}, tuple(drawn(draw) for _ in range(150))))
    expected = {(DRAFT, TARGET): 0.56, (MIDDLE, TARGET): 0.8, (DRAFT, MIDDLE): 0.7}
    for pair, rate in expected.items():
        agreement = found.agreements[pair]
        assert agreement.rate(4) == pytest.approx(rate, abs=0.02)
        assert fmean(agreement.chance(place, 4) for place in range(4)) == pytest.approx(rate, abs=0.03)


def test_recorded_tiers_say_how_far_levels_depend_on_each_other():
    draw = random.Random(4)
    known = of_recordings(TraceSet("t", "d", {}, tuple(drawn(draw) for _ in range(150)))).dependences
    found = known[DRAFT, MIDDLE, TARGET]
    # The device says 0.7 of the hub's tokens whether they stand or not, in blocks whose last token it did not draft.
    assert found.both == pytest.approx(0.8, abs=0.03)
    assert found.other == pytest.approx(0.8, abs=0.03)
    assert 0.5 < found.share < 0.7
    assert VETTED > 1


def test_given_rates_depend_on_each_other_as_recorded_ones_do():
    """Rates of the packaged recording bring its other shares back, within some hundredths."""
    found = of_rates(0.625, 0.8)
    known = found.dependences[DRAFT, MIDDLE, TARGET]
    assert found.agreements[DRAFT, MIDDLE].chance(0, 4) == pytest.approx(0.672, abs=0.01)
    assert (known.both, known.other) == (pytest.approx(0.891, abs=0.01), pytest.approx(0.615, abs=0.02))
    assert known.share * known.both + (1 - known.share) * known.other == pytest.approx(0.8)
    assert of_rates(0.6, 0.8, 0.9).agreements[DRAFT, MIDDLE].chance(3, 4) == 0.9
    assert of_rates(0.6, 0.3).dependences[DRAFT, MIDDLE, TARGET].other == 0


def test_the_packaged_tiers_are_those_of_the_page():
    shares = [line.split(": ")[1][:5] for line in agreement(tiers().items)]
    assert shares == ["0.800", "0.625", "0.672", "0.891", "0.615"]
    page = Path("docs/planning.md").read_text("utf-8")
    assert all(f"| {share} |" in page for share in shares)


# -- the plan ---------------------------------------------------------------------------------------------


def test_all_paths_are_compared_at_the_load_of_the_users():
    lone, shared = make_hierarchy_plan(config()), make_hierarchy_plan(config(users=30))
    for plan in (lone, shared):
        assert {ALONE, BESIDE, DIRECT, BY_HUB, THREE} <= {row.path for row in plan.rows}
        rates = [row.chain.rate for row in plan.rows]
        assert rates == sorted(rates, reverse=True)
    of_lone, of_shared = ({row.path: row.chain.rate for row in plan.rows} for plan in (lone, shared))
    assert all(of_shared[path] < rate for path, rate in of_lone.items())


def test_as_many_users_share_the_server_as_were_asked_for():
    """Centralized: a step over all of them; nobody else waits for one."""
    site = site_of(config(), "a100-80")
    plan = make_hierarchy_plan(config(users=30))
    alone = next(row for row in plan.rows if row.path == ALONE)
    assert alone.chain.rate == pytest.approx(1 / site.server.verify_s(30, 30 * 1024), rel=0.01)


@pytest.mark.parametrize("path", [ALONE, BESIDE, DIRECT, BY_HUB, THREE])
def test_a_server_holds_as_many_as_keep_the_pace(path):
    site = site_of(config(context=256, hub_link="5"), "a100-80")
    held = capacity(site, path, 12)
    assert 1 < held < site.places(path)
    assert capacity(site, path, 6) > held
    assert capacity(site, path, along(site, path).rate * 1.01) == 0


def test_kv_memory_limits_the_users_of_every_path():
    site = site_of(config(context=8192, accelerator="rtx-4090", weight_bits=8), "rtx-4090")
    for path in paths(site):
        assert capacity(site, path, 0.5) == site.places(path)
    assert site.places(BESIDE) < site.places(ALONE)


def test_a_hub_without_room_for_its_model_is_left_out(capsys):
    asked = ("--hub", "orin-nano-super", "--hub-model", "dense-14b")
    rates = ("--acceptance", "0.6", "--hub-acceptance", "0.9")
    assert main(["plan", "--hierarchy", "--accelerator", "a100-80", *asked, *rates]) == 0
    assert "dense-14b does not fit on orin-nano-super" in capsys.readouterr().out
    site = site_of(config(hub="orin-nano-super", hub_model="dense-14b"), "a100-80")
    assert all(place != HUB for path in paths(site) for _, place in path)


def test_a_hub_nearby_with_a_good_model_makes_a_hierarchy():
    """A slow target on a large model, a hub whose steps take long beside the device's, and all of them close."""
    far = config(
        target="dense-70b",
        weight_bits=8,
        hub="agx-orin",
        hub_model="dense-8b",
        hub_weight_bits=8,
        hub_link="5",
    )
    plan = make_hierarchy_plan(
        PlanConfig(**{**vars(far), "acceptance": "0.75", "hub_acceptance": 0.95, "draft_acceptance": 0.85,
                      "accelerator": "strix-halo", "link": "ethernet", "devices": "laptop-cpu"})
    )  # fmt: skip
    assert plan.best.path == THREE
    assert plan.best.chain.rate > 1.2 * max(row.chain.rate for row in plan.rows if row.depth < 2)


def test_a_round_trip_is_a_number_or_a_profile():
    assert hub_rtt_s("60") == 0.06
    assert 0.08 < hub_rtt_s("wan-80") < 0.1


# -- what a person sees -----------------------------------------------------------------------------------

ASKED = ("plan", "--hierarchy", "--accelerator", "a100-80", "--acceptance", "0.6", "--hub-acceptance", "0.8")


def test_the_verdict_names_the_best_and_compares_the_others(capsys):
    assert main([*ASKED, "--hub-link", "60"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "A single tier is best here: " in told
    assert (
        "The best hierarchy (0.5b draft on device -> draft-3b on agx-orin -> dense-8b on a100-80) gives"
        in told
    )
    assert "The best single draft" in told or "The server alone" in told
    assert "none was measured" in told


def test_json_has_every_row_and_what_it_assumes(capsys):
    assert main([*ASKED, "--draft-acceptance", "0.7", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["label"] == "derived"
    assert told["assumes"]["agreements"]["draft > middle"] == [[0.7]]
    rates = [row["tokens_per_s"] for row in told["rows"]]
    assert rates == sorted(rates, reverse=True)
    three = next(row for row in told["rows"] if len(row["path"]) == 3)
    assert [each["place"] for each in three["path"]] == [CLOUD, HUB, DEVICE]
    assert len(three["blocks"]) == 2
    assert three["positions_per_token"] > 1


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--hub", "toaster"), 3, "toaster"),
        (("--hub-model", "poem"), 3, "poem"),
        (("--hub-link", "string"), 2, "give a round trip in ms"),
        (("--hub-link", "-3"), 2, "0 to 10000 ms"),
        (("--draft", "9b"), 2, "choose from"),
        (("--curve", "curve.png"), 2, "--curve is not for --hierarchy"),
        (("--target", "dense-70b", "--weight-bits", "16"), 2, "do not fit on a100-80"),
        (("--acceptance", ""), 2, "give both"),
    ],
)
def test_mistakes_are_named(flags, code, words, capsys):
    assert main([*ASKED, *flags]) == code
    assert words in capsys.readouterr().err


# -- the map ----------------------------------------------------------------------------------------------


def test_the_map_has_every_place_that_the_server_has_room_for():
    site = site_of(config(context=8192, accelerator="a100-80"), "a100-80")
    found = points(site)
    room = sessions_beside(site.server, 8192)
    assert {point.others for point in found} == {load for load in LOADS if load < room}
    for point in found:
        deep = len(point.path) > 2
        assert deep == (point.gain > 1)
    near, far = (
        next(each for each in found if (each.hub, each.rtt_ms, each.others) == ("agx-orin", rtt, 0))
        for rtt in (5, 250)
    )
    assert near.gain > far.gain


def test_the_command_draws_the_map(tmp_path, capsys):
    path = tmp_path / "map.png"
    assert main([*ASKED, "--json", "--map", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)
    assert b"PNG" in path.read_bytes()[:200]
    assert path.stat().st_size > 10_000
