"""Three tiers and chains of models in the simulator: the text is the top target's, a hub saves what it must."""

import json
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.testbed.fleet import Fleet, Group, Hub, Server, read_fleet
from lab.testbed.load.load import Load
from lab.testbed.load.records import RunResult
from lab.testbed.load.slo import pace_of
from lab.testbed.planner.hierarchy_site import DEVICE, DRAFT, HUB, MIDDLE, Path
from lab.testbed.simulated.hierarchy import (
    BESIDE,
    CENTRALIZED,
    FROM_DEVICE,
    FROM_HUB,
    MIDDLE_BESIDE,
    ON_HUB,
    SINGLE,
    SMALL_ON_HUB,
    THREE_TIERS,
    Recordings,
    Tiers,
    rate,
    simulate_chain,
)
from lab.testbed.simulator import simulate
from lab.testbed.tiers import spoken
from lab.testbed.traces import TraceSet
from opensled.core.errors import UsageError
from tests.lab.made_tiers import made_tiers
from tests.lab.made_traces import finished, require_possible

# 45 ms a step, and the hub takes 7 ms
CLOUD = Server(accelerator="a100-80", target="dense-32b", context=1024, draft_wait=1.0)
NEAR_HUB = Hub(
    accelerator="strix-halo", target="draft-1.5b", context=1024, link="wan-80", policy="fcfs", bound=0.0
)
READERS = Group(2, link="ethernet", drafter="none")
DEVICES = Group(2, link="ethernet")  # whose drafts take no time
LOAD = Load(warmup=1.0, duration=8.0)


def run(hub: float = 1.0, group: Group = READERS, load: Load = LOAD, **options: object) -> RunResult:
    """Devices of one kind at a hub that says what the target says with chance `hub`."""
    fleet = Fleet(CLOUD, (group,), hub=replace(NEAR_HUB, **options))
    return simulate(fleet, made_tiers(hub, tokens=60), load)


def whole(result: RunResult, traces: TraceSet) -> bool:
    lengths = {item.item: len(item.target_ids) for item in traces.items}
    return all(record.tokens == lengths[record.item] for record in finished(result))


@pytest.mark.parametrize("group", [READERS, DEVICES, replace(DEVICES, look_ahead=True)])
@pytest.mark.parametrize("policy", ["fcfs", "goodput"])
@pytest.mark.parametrize("hub", [0.7, *(pytest.param(each, marks=pytest.mark.long) for each in (0.0, 1.0))])
def test_every_answer_is_the_whole_text_of_the_target(hub, policy, group):
    result = run(hub, group, policy=policy)
    assert finished(result) and whole(result, made_tiers(hub, tokens=60))


def test_a_hub_that_agrees_saves_the_target_its_steps():
    """Each block of eight stands with its bonus token, but for the first steps and the last block of an answer."""
    plain = simulate(Fleet(CLOUD, (replace(READERS, link="wan-80"),)), made_tiers(1.0, tokens=60), LOAD)
    steps, tokens = run().server.steps, run().server.tokens
    assert steps / tokens < 0.5 * plain.server.steps / plain.server.tokens
    assert run(block=16).server.steps / run(block=16).server.tokens < steps / tokens


def test_what_a_hub_that_agrees_vets_is_text():
    result = run()
    assert result.hubs.tokens == pytest.approx(result.server.tokens, rel=0.1)
    assert result.server.positions < 2.2 * result.server.tokens  # prompts are counted, too


def test_a_hub_that_is_always_wrong_costs_positions_and_no_token():
    wrong, agrees = run(0.0), run()
    assert wrong.server.tokens <= wrong.server.step_sessions  # one in each step at most
    assert wrong.hubs.tokens > 1.5 * wrong.server.tokens
    assert wrong.server.positions / wrong.server.tokens > agrees.server.positions / agrees.server.tokens


def test_a_bound_sends_doubtful_blocks_earlier():
    """Where half of all tokens are taken back, a block of sixteen never stands; a short one wastes fewer positions."""
    late, early = run(0.5, block=16), run(0.5, block=16, bound=0.4)
    assert early.server.positions / early.server.tokens < 0.7 * late.server.positions / late.server.tokens


def test_users_read_faster_where_the_hub_agrees():
    """Two blocks of nine tokens with their bonus are under way at a time, a round trip and two steps each."""
    reader = replace(READERS, count=1)
    alone = simulate(Fleet(CLOUD, (replace(reader, link="wan-80"),)), made_tiers(1.0, tokens=60), LOAD)
    faster = pace_of(finished(run(1.0, reader))) / pace_of(finished(alone))
    assert 2 < faster < 9


def test_devices_that_draft_spare_the_hub_steps():
    reading, drafting = run(1.0), run(1.0, DEVICES)
    assert drafting.hubs.steps / drafting.hubs.tokens < 0.8 * reading.hubs.steps / reading.hubs.tokens


def test_a_device_drafts_on_when_its_hub_takes_tokens_back():
    """Its work at that moment is void, and it begins again: no reader ever waits for as long as the hub would."""
    slow = replace(DEVICES, device="orin-nano-super", look_ahead=True)
    result = run(0.7, slow, draft_wait=30.0, accelerator="agx-orin", bound=0.4)
    times = [[arrival.time for arrival in record.arrivals] for record in result.requests]
    assert max(after - before for each in times for before, after in pairwise(each)) < 1.0
    assert finished(result) and whole(result, made_tiers(0.7, tokens=60))


def test_direct_users_ask_past_the_hub():
    groups = (READERS, replace(READERS, link="wan-80", direct=True))
    result = simulate(Fleet(CLOUD, groups, hub=NEAR_HUB), made_tiers(1.0, tokens=60), LOAD)
    by_group = [sum(record.tokens for record in result.requests if record.group == each) for each in (0, 1)]
    assert all(by_group)
    assert result.hubs.tokens == pytest.approx(by_group[0], rel=0.15)


def test_users_are_spread_over_hubs():
    """One hub for each user computes each of them alone; one for six makes a batch."""
    group = replace(READERS, count=6)
    one, six = run(1.0, group), run(1.0, group, count=6)
    assert six.hubs.step_sessions == six.hubs.steps
    assert one.hubs.step_sessions > 1.5 * one.hubs.steps


@pytest.mark.long
def test_the_same_arguments_give_the_same_run():
    first, second = (json.dumps(asdict(run(0.7, DEVICES, policy="goodput"))) for _ in range(2))
    assert first == second
    assert json.dumps(asdict(run(0.7, DEVICES, load=replace(LOAD, seed=1), policy="goodput"))) != first


HIERARCHIES = given(
    hub=st.sampled_from((0.0, 0.4, 0.8, 1.0)),
    device=st.sampled_from((0.0, 0.6, 1.0)),
    shape=st.builds(
        Hub,
        accelerator=st.sampled_from(("orin-nano-super", "strix-halo")),
        target=st.just("draft-1.5b"),
        context=st.integers(0, 2048),
        policy=st.sampled_from(("fcfs", "goodput")),
        draft_wait=st.sampled_from((0.0, 0.05, 5.0)),
        count=st.integers(1, 3),
        link=st.sampled_from(("", "ethernet", "lte-bad", "wan-110")),
        block=st.integers(1, 20),
        bound=st.sampled_from((0.0, 0.4, 1.0)),
    ),
    wait=st.sampled_from((0.0, 0.05, 5.0)),
    groups=st.lists(
        st.builds(
            Group,
            count=st.integers(1, 3),
            device=st.sampled_from(("", "pi-4", "orin-nano-super")),
            link=st.sampled_from(("", "wifi-busy", "lte-bad")),
            drafter=st.sampled_from(("none", "llamacpp")),
            draft_length=st.integers(0, 8),
            look_ahead=st.booleans(),
            direct=st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ),
    seed=st.integers(0, 99),
)


@pytest.mark.parametrize("examples", [8, pytest.param(25, marks=pytest.mark.long)])
def test_nothing_impossible_happens_in_any_hierarchy(examples):
    @settings(max_examples=examples)
    @HIERARCHIES
    def require_possible_hierarchy(hub, device, shape, wait, groups, seed) -> None:
        traces = made_tiers(hub, device, 6, seed, 24)
        fleet = Fleet(replace(CLOUD, draft_wait=wait), tuple(groups), hub=shape)
        require_possible(simulate(fleet, traces, Load(warmup=0.5, duration=4.0, seed=seed)), traces)

    require_possible_hierarchy()


# -- what a fleet says ------------------------------------------------------------------------------------------


def test_a_fleet_names_its_hubs(tmp_path):
    path = tmp_path / "home.toml"
    path.write_text(
        '[server]\n[hub]\ncount = 2\naccelerator = "agx-orin"\nlink = "wan-80"\n[[device]]\ndirect = true\n'
    )
    fleet = read_fleet(path)
    assert fleet.hub == Hub(count=2, accelerator="agx-orin", link="wan-80")
    assert fleet.groups[0].direct


@pytest.mark.parametrize(
    ("line", "says"),
    [("bound = 1.5", "bound"), ("count = 0", "count"), ('draft = "0.5b"', "draft"), ("blocks = 3", "blocks")],
)
def test_what_a_hub_cannot_be_is_refused_by_name(tmp_path, line, says):
    path = tmp_path / "home.toml"
    path.write_text(f"[hub]\n{line}\n")
    with pytest.raises(UsageError, match=says):
        read_fleet(path)


def test_a_hub_needs_an_accelerator_and_room():
    with pytest.raises(UsageError, match="accelerator"):
        run(accelerator="")
    with pytest.raises(UsageError, match="does not fit on orin-nano-super"):
        run(accelerator="orin-nano-super", target="dense-14b")


# -- others, and links one after another ------------------------------------------------------------------------


def test_others_slow_every_step_as_much_as_that_many_readers():
    """Of eight readers at work all the time one is the fleet's, or all of them are."""
    traces, way = made_tiers(1.0, tokens=60), replace(READERS, link="", direct=True)
    one = simulate(Fleet(replace(CLOUD, others=7), (replace(way, count=1),)), traces, LOAD)
    all_of_them = simulate(Fleet(CLOUD, (replace(way, count=8),)), traces, LOAD)
    assert pace_of(finished(one)) == pytest.approx(pace_of(finished(all_of_them)), rel=0.03)
    assert replace(CLOUD, others=7).sessions_that_fit == CLOUD.sessions_that_fit - 7


def test_a_server_with_others_is_never_idle():
    busy = simulate(Fleet(replace(CLOUD, others=7), (READERS,)), made_tiers(1.0), replace(LOAD, think=5.0))
    assert busy.server.busy_s == pytest.approx(LOAD.duration, rel=0.02)
    quiet = simulate(Fleet(CLOUD, (READERS,)), made_tiers(1.0), replace(LOAD, think=5.0))
    assert quiet.server.busy_s < 0.8 * LOAD.duration


def test_a_way_over_two_links_takes_as_long_as_both():
    seconds = {}
    for link in ("wan-60", "wan-150", "wan-60+wan-150"):
        result = simulate(Fleet(CLOUD, (replace(READERS, count=1, link=link),)), made_tiers(1.0), LOAD)
        first = finished(result)[0]
        seconds[link] = first.arrivals[0].time - first.sent
    step_s = seconds["wan-60"] + seconds["wan-150"] - seconds["wan-60+wan-150"]
    # Counted twice: the reading of the prompt, and a second round trip opens no sequence
    assert 0.03 < step_s < 0.08


# -- chains of models -------------------------------------------------------------------------------------------


TIERS = Tiers(
    Server(accelerator="h200", target="dense-32b", context=1024, others=24),
    Hub(accelerator="strix-halo", target="draft-1.5b", context=1024, link="wan-20"),
    Group(2, "orin-nano-super", "ethernet", draft="135m"),
)
AGREES = Recordings(made_tiers(1.0, 0.9, tokens=60), made_tiers(0.6, 0.9, tokens=60))


def chain(path: Path, *lengths: int, tiers: Tiers = TIERS, recorded: Recordings = AGREES, bound: float = 0.0):
    return simulate_chain(tiers, path, lengths, recorded, bound, LOAD)


@pytest.mark.parametrize("path", [CENTRALIZED, *SINGLE, *ON_HUB])
def test_every_path_answers(path):
    result = chain(path, *[4] * (len(path) - 1))
    assert rate(result) > 0
    hub = any(place == HUB for _, place in path)
    assert bool(result.hubs.tokens) == hub
    assert any(record.rounds for record in result.requests) == any(place == DEVICE for _, place in path)
    assert bool(result.server.drafting_s) == (path in (BESIDE, MIDDLE_BESIDE))


def test_a_hub_that_agrees_is_faster_than_the_loaded_target_alone():
    alone = rate(chain(CENTRALIZED))
    assert rate(chain(FROM_HUB, 8)) > 1.2 * alone
    assert rate(chain(FROM_HUB, 8)) > rate(chain(SMALL_ON_HUB, 8))


def test_a_hub_slower_than_the_target_s_stream_leaves_it_the_drive():
    """So it costs a user next to nothing: the target's own stream is what comes."""
    slow = replace(
        TIERS, hub=replace(TIERS.hub, accelerator="orin-nano-super", target="dense-8b", context=16)
    )
    fast = replace(slow, server=replace(TIERS.server, others=0))
    assert rate(chain(FROM_HUB, 8, tiers=fast)) == pytest.approx(
        rate(chain(CENTRALIZED, tiers=fast)), rel=0.1
    )


def test_devices_spare_a_slow_hub_steps():
    slow = replace(TIERS, hub=replace(TIERS.hub, accelerator="orin-nano-super", target="draft-3b"))
    three, two = chain(THREE_TIERS, 8, 4, tiers=slow), chain(FROM_HUB, 8, tiers=slow)
    assert three.hubs.steps / three.hubs.tokens < 0.7 * two.hubs.steps / two.hubs.tokens


def test_a_device_drafts_over_both_links():
    far = replace(TIERS, hub=replace(TIERS.hub, link="wan-150"))
    assert rate(chain(FROM_DEVICE, 4, tiers=far)) < 0.6 * rate(chain(FROM_DEVICE, 4))


def test_the_middle_model_drafts_what_it_writes():
    item, said = AGREES.small.items[0], spoken(AGREES.small).items[0]
    for place, proposal in enumerate(said.proposals):
        expected = item.vetted_after(item.target_ids[:place])
        assert proposal.ids[: len(expected)] == expected[:8]
    right = chain(MIDDLE_BESIDE, 4).server
    assert right.tokens / right.step_sessions > 3.5  # of a block of four that stands, with its bonus token


def test_what_is_no_chain_is_refused():
    with pytest.raises(UsageError, match="no chain"):
        chain((*THREE_TIERS, (DRAFT, HUB)), 4, 4, 4)
    with pytest.raises(UsageError, match="no chain"):
        chain(FROM_HUB)
    with pytest.raises(UsageError, match="does not fit"):
        chain(FROM_HUB, 4, tiers=replace(TIERS, hub=replace(TIERS.hub, target="dense-70b", weight_bits=16.0)))


def test_the_middle_model_may_draft_on_the_device():
    path: Path = (*CENTRALIZED, (MIDDLE, DEVICE))
    assert rate(chain(path, 4)) > 0
