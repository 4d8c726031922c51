"""The simulator against the law computed by hand, the traces, and the position rules; nothing here takes real time."""

import json
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.lengths.base import pull_tokens
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from hw_profiles import catalog
from lab.testbed.baselines import BASELINES
from lab.testbed.emulation.draft_head import sessions_beside
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.load.load import Load, asked_by, due_times
from lab.testbed.load.records import RequestRecord, RunResult
from lab.testbed.load.slo import Slo, paces, served
from lab.testbed.simulated.compare import compare
from lab.testbed.simulated.server import Overhead
from lab.testbed.simulator import simulate
from lab.testbed.traces import ItemTrace, TraceSet
from opensled.core.errors import UsageError
from opensled.core.messages import DraftToken
from opensled.core.protocol import common_prefix
from tests.lab.made_traces import finished, made, require_possible

HUB = Server(accelerator="agx-orin", target="dense-8b", weight_bits=8, context=512)
BESIDE = Group(1)  # no link, and a draft model that takes no time
SHORT = Load(warmup=1.0, duration=6.0)
TRACES = made()


def kitchen(users: int = 6, server: Server = HUB) -> Fleet:
    """Slow and fast devices on links of several kinds."""
    groups = (
        Group(1, "pi-5", "lte"),
        Group(1, "orin-nano-super", "wifi-good"),
        Group(1, "laptop-cpu", "wan-80"),
    )
    return Fleet(server, groups).of_users(users)


# -- what holds for every fleet ---------------------------------------------------------------------------------


LONGEST = ("opensled-device", "opensled-server", "opensled-specformer", "opensled-ctc")


@pytest.mark.parametrize(
    "baseline", [pytest.param(name, marks=[pytest.mark.long] * (name in LONGEST)) for name in BASELINES]
)
def test_the_same_arguments_give_the_same_run(baseline):
    fleet = BASELINES[baseline](kitchen())
    first, second = (json.dumps(asdict(simulate(fleet, TRACES, SHORT))) for _ in range(2))
    assert first == second
    assert json.dumps(asdict(simulate(fleet, TRACES, replace(SHORT, seed=1)))) != first


@pytest.mark.parametrize(
    "names",
    [
        ("centralized", "server-sd", "sled-static", "opensled", "device-only"),
        pytest.param(tuple(BASELINES), marks=pytest.mark.long),
    ],
    ids=["some", "all"],
)
def test_every_baseline_meets_the_same_questions(names):
    """However many of them it gets to."""
    asked = {name: questions(simulate(BASELINES[name](kitchen()), TRACES, SHORT)) for name in names}
    order = [item.item for item in TRACES.items]
    for user in range(6):
        expected = asked_by(user, order, SHORT)
        longest = max((by_user[user] for by_user in asked.values()), key=len)
        assert longest == [next(expected) for _ in longest]
        assert all(by_user[user] == longest[: len(by_user[user])] for by_user in asked.values())


def questions(result: RunResult) -> dict[int, list[str]]:
    by_user: dict[int, list[str]] = {}
    for record in result.requests:
        by_user.setdefault(record.user, []).append(record.item)
    return by_user


def test_a_device_alone_writes_its_own_text_at_its_own_pace():
    group = replace(BESIDE, device="orin-nano", drafter="alone")
    result = simulate(Fleet(HUB, (group,)), TRACES, SHORT)
    lengths = {item.item: len(item.alone_ids) for item in TRACES.items}
    assert all(record.tokens == lengths[record.item] for record in finished(result))
    rate = catalog.device("orin-nano").draft("0.5b").decode_per_s.typical
    assert paces(result)[0] == pytest.approx(rate)
    assert result.server.steps == 0


def test_users_beyond_the_kv_that_fits_are_never_served():
    server = replace(HUB, context=100_000)
    fit = sessions_beside(server.cost, server.context)
    fleet = BASELINES["centralized"](kitchen(fit + 4, server))
    result = simulate(fleet, TRACES, replace(SHORT, duration=60))
    assert 0 < fit < 10
    assert served(result, Slo(pace=0.001)) == fit
    assert sum(record.error.startswith("overloaded") for record in result.requests) == 4


def test_constant_overhead_slows_every_step_down():
    fleet = BASELINES["centralized"](kitchen())
    bare, slowed = simulate(fleet, TRACES, SHORT), simulate(fleet, TRACES, SHORT, Overhead(step_s=0.05))
    assert slowed.server.busy_s / slowed.server.steps > bare.server.busy_s / bare.server.steps + 0.049


def test_open_arrivals_come_when_they_are_due_to_users_in_turns():
    load = replace(SHORT, arrivals="poisson", rate=4.0)
    result = simulate(kitchen(), TRACES, load)
    assert [record.due for record in result.requests] == list(due_times(load))
    assert [record.user for record in result.requests[:7]] == [0, 1, 2, 3, 4, 5, 0]
    assert result.requests[0].sent == result.requests[0].due


def test_a_device_at_work_leaves_further_requests_to_the_server():
    load = replace(SHORT, arrivals="trace", trace=(0.5, 0.5, 0.5))
    result = simulate(kitchen(1), made(tokens=200), load)
    assert [bool(record.rounds) for record in result.requests] == [True, False, False]
    assert all(record.tokens for record in result.requests)


FLEETS = st.builds(
    lambda server, groups: Fleet(server, tuple(groups)),
    st.builds(
        Server,
        accelerator=st.sampled_from(("agx-orin", "a100-80")),
        target=st.sampled_from(("dense-8b", "moe-30b-a3b")),
        weight_bits=st.just(4.0),
        context=st.integers(0, 4096),
        policy=st.sampled_from(("fcfs", "static")),
        batch=st.integers(0, 3),
        draft_wait=st.sampled_from((0.0, 0.02, 0.25, 5.0)),
        draft=st.sampled_from(("", "0.5b")),
    ),
    st.lists(
        st.builds(
            Group,
            count=st.integers(1, 3),
            device=st.sampled_from(("", "pi-4", "laptop-cpu")),
            link=st.sampled_from(("", "ethernet", "lte-bad", "wan-110")),
            drafter=st.sampled_from(("none", "lookup", "llamacpp")),
            draft_length=st.integers(0, 8),
            confidence=st.sampled_from((0.0, 0.5)),
            user_link=st.sampled_from(("", "", "wifi-good")),
        ),
        min_size=1,
        max_size=3,
    ),
)


@pytest.mark.parametrize("examples", [15, pytest.param(60, marks=pytest.mark.long)])
def test_nothing_impossible_happens_in_any_fleet(examples):
    @settings(max_examples=examples)
    @given(fleet=FLEETS, seed=st.integers(0, 99))
    def require_possible_fleet(fleet: Fleet, seed: int) -> None:
        traces = made(6, 0.6, seed, 16)
        result = simulate(fleet, traces, Load(warmup=0.5, duration=4.0, seed=seed))
        require_possible(result, traces)
        assert 0 <= result.server.busy_s <= result.end
        assert result.server.positions >= result.server.tokens - result.server.step_sessions

    require_possible_fleet()


# -- pieces -----------------------------------------------------------------------------------------------------


def test_a_run_compared_with_itself_shows_no_error():
    result = simulate(kitchen(), TRACES, SHORT)
    figures = compare(result, result)
    assert {"throughput", "pace", "tokens_per_round", "positions_per_token"} <= figures.keys()
    assert all(figure["error"] == 0 for figure in figures.values())
    slower = simulate(kitchen(), TRACES, SHORT, Overhead(step_s=0.05))
    assert compare(result, slower)["throughput"]["error"] < -0.1


def test_what_cannot_be_simulated_is_refused_by_name():
    with pytest.raises(UsageError, match="accelerator"):
        simulate(Fleet(), TRACES, SHORT)
    with pytest.raises(UsageError, match="does not fit on agx-orin"):
        simulate(kitchen(server=replace(HUB, context=10_000_000)), TRACES, SHORT)
    with pytest.raises(UsageError, match="device profile"):
        simulate(Fleet(HUB, (replace(BESIDE, drafter="alone"),)), TRACES, SHORT)
    mute = replace(TRACES, items=tuple(replace(item, alone_ids=()) for item in TRACES.items))
    with pytest.raises(UsageError, match="writes alone"):
        simulate(Fleet(HUB, (replace(BESIDE, device="pi-5", drafter="alone"),)), mute, SHORT)


# -- computed by hand ---------------------------------------------------------------------------------------------


def one_item(acceptance: float = 1.0, tokens: int = 26) -> TraceSet:
    """A single text of just `tokens` tokens."""
    for seed in range(1000):
        traces = made(1, acceptance, seed, tokens)
        if len(traces.items[0].target_ids) == tokens:
            return traces
    raise AssertionError("no such text")


def steps_by_hand(item: ItemTrace, sizes: list[int]) -> list[float]:
    """Seconds of each step of one session that commits `sizes` tokens, all of them computed but the last of each."""
    seconds, length, uncomputed = [], len(item.prompt_ids), len(item.prompt_ids)
    for size in sizes:
        tokens = uncomputed + size - 1
        seconds.append(HUB.cost.verify_s(tokens, HUB.context + length + size - 1))
        length, uncomputed = length + size, 1
    return seconds


def test_the_pace_of_a_perfect_drafter_beside_the_target_is_that_of_the_law():
    traces = one_item(acceptance=1.0, tokens=26)
    first = finished(simulate(Fleet(HUB, (BESIDE,)), traces, SHORT))[0]
    seconds = steps_by_hand(traces.items[0], [5, 5, 5, 5, 5, 1])
    assert [arrival.tokens for arrival in first.arrivals] == [5, 5, 5, 5, 5, 1]
    assert first.arrivals[0].time - first.sent == pytest.approx(seconds[0])
    assert first.arrivals[-1].time - first.arrivals[0].time == pytest.approx(sum(seconds[1:]))


def test_centralized_decoding_takes_one_step_for_each_token():
    traces = one_item(tokens=26)
    first = finished(simulate(Fleet(HUB, (replace(BESIDE, drafter="none"),)), traces, SHORT))[0]
    seconds = steps_by_hand(traces.items[0], [1] * 26)
    times = [first.sent, *(arrival.time for arrival in first.arrivals)]
    assert [after - before for before, after in pairwise(times)] == pytest.approx(seconds)
    assert not first.rounds and not first.wasted


def test_a_device_takes_its_own_time_for_a_block():
    """For its first one the reading of the prompt, too; the server has written more by then, so that it ends there."""
    traces = one_item(tokens=60)
    patient = replace(HUB, draft_wait=100.0)
    result = simulate(Fleet(patient, (replace(BESIDE, device="pi-5"),)), traces, replace(SHORT, duration=60))
    first, speed = finished(result)[0], catalog.device("pi-5").draft("0.5b")
    prompt_s = max(speed.draft_s(1), len(traces.items[0].prompt_ids) / speed.prefill_per_s.typical)
    assert first.rounds[0].sent - first.sent == pytest.approx(prompt_s)
    assert first.rounds[0].drafted == 1
    later = first.rounds[1:-1]
    assert [b.sent - a.answered for a, b in pairwise(later)] == pytest.approx(
        [speed.draft_s(4)] * (len(later) - 1)
    )


def test_the_server_decodes_for_a_device_that_is_silent_for_longer_than_it_waits():
    """After the first draft a patient server only ends its step, and adds the very last token, which needs no draft."""
    traces, load = one_item(tokens=60), replace(SHORT, duration=60)
    group = replace(BESIDE, device="pi-5")
    patient = finished(simulate(Fleet(replace(HUB, draft_wait=100.0), (group,)), traces, load))[0]
    hasty = finished(simulate(Fleet(replace(HUB, draft_wait=0.05), (group,)), traces, load))[0]
    assert later_chunks(patient) <= len(patient.rounds) + 1
    assert later_chunks(hasty) > 2 * len(hasty.rounds)


def later_chunks(record: RequestRecord) -> int:
    """Chunks after that of the first round."""
    return sum(arrival.time > record.rounds[0].answered for arrival in record.arrivals)


def test_rounds_are_those_that_the_traces_imply():
    result = simulate(Fleet(HUB, (replace(BESIDE, confidence=0.5),)), TRACES, replace(SHORT, duration=20))
    items = {item.item: item for item in TRACES.items}
    records = finished(result)
    assert len({record.item for record in records}) > 5
    for record in records:
        found = [(round.drafted, round.accepted) for round in record.rounds]
        assert found == rounds_by_hand(items[record.item], ConfidenceLength(4, confidence=0.5)), record.item


def rounds_by_hand(item: ItemTrace, stop: FixedLength) -> list[tuple[int, int]]:
    """Drafted and accepted tokens of each round, where an empty block hands one token to the server."""
    place, rounds = 0, []
    longest = max(len(each.target_ids) for each in TRACES.items)
    while place < len(item.target_ids):
        proposal = item.proposals[place]
        tokens = map(DraftToken, proposal.ids, proposal.confidences)
        limit = longest - place - 1
        block = tuple(pull_tokens(stop, tokens, stop.most(limit), lambda: False))
        accepted = common_prefix([token.id for token in block], item.target_ids[place:])
        if block:
            rounds.append((len(block), accepted))
        place += accepted + 1
    return rounds
