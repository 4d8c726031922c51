"""Load on a fleet without any process: arrivals, sources, formulas, accounts. `pytest tests/lab/test_load.py`"""

import asyncio
import json
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from edge_client.link.remote import RetryPolicy
from edge_client.round.draft_job import BlockBudget, Drafted
from lab.testbed.baselines import past_hubs
from lab.testbed.emulation.replay import NoDrafts
from lab.testbed.fleet import Fleet, Group, Server, read_fleet
from lab.testbed.load.chats import read_chats
from lab.testbed.load.command import FLEETS, bench_serve, fleet_of
from lab.testbed.load.config import BenchServeConfig
from lab.testbed.load.device_drafts import recorded
from lab.testbed.load.http_device import shared
from lab.testbed.load.load import Load, asked_by, due_times, read_trace, start_of, thinking
from lab.testbed.load.records import Arrival, Clock, Round, ServerTotals, between
from lab.testbed.load.run import Run, label
from lab.testbed.load.server_process import command, sessions
from lab.testbed.load.site import Seat
from lab.testbed.load.slo import Slo, paces
from lab.testbed.load.sources import TEMPERATURE, Shape, heldout_items, items_of, synthetic_items
from lab.testbed.load.summary import summarise
from lab.testbed.load.wire import Shares, TimedSession, weighed
from lab.testbed.traces import ItemTrace, TraceSet
from opensled.core.errors import NotFound, UsageError
from opensled.core.messages import Cancel, ChatMessage, Draft, DraftBlock, DraftToken, Limits, Open, Opened
from opensled.core.protocol import Truth
from tests.lab.run_records import record, result

# -- arrivals -------------------------------------------------------------------------------------------------

LONG = Load("poisson", rate=20, warmup=0, duration=500)


def _gaps(load):
    times = list(due_times(load))
    return [later - earlier for earlier, later in pairwise(times)]


def test_poisson_arrivals_have_the_rate_and_the_spread_of_an_exponential():
    gaps = _gaps(LONG)
    assert statistics.fmean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(1, rel=0.05)


def test_bursty_arrivals_have_the_same_rate_and_the_spread_of_their_gamma():
    gaps = _gaps(Load("bursty", rate=20, burstiness=0.25, warmup=0, duration=500))
    assert statistics.fmean(gaps) == pytest.approx(1 / 20, rel=0.1)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(2, rel=0.1)  # 1 / sqrt(shape)


def test_arrivals_depend_on_the_seed_alone():
    assert list(due_times(LONG)) == list(due_times(LONG))
    assert list(due_times(LONG)) != list(due_times(Load("poisson", 20, warmup=0, duration=500, seed=1)))


def test_arrivals_end_with_the_measured_window():
    trace = Load("trace", trace=(3.0, 0.5, 11.9, 12.0, 40.0), warmup=2, duration=10)
    assert list(due_times(trace)) == [0.5, 3.0, 11.9]
    assert max(due_times(Load("poisson", rate=50, warmup=2, duration=10))) < 12


def test_users_start_one_after_another_within_the_warm_up():
    assert [start_of(user, 4, Load(warmup=2)) for user in range(4)] == [0, 0.5, 1, 1.5]


def test_users_think_as_long_as_they_should_on_average_and_not_at_all_without():
    thought = thinking(3, Load(think=2.0))
    assert statistics.fmean(next(thought) for _ in range(4000)) == pytest.approx(2, rel=0.1)
    assert next(thinking(3, Load())) == 0


def test_every_user_asks_every_item_in_an_order_of_his_own():
    items = list(range(9))
    first, second = ([item for item, _ in zip(asked_by(user, items, Load()), range(18))] for user in (0, 1))
    assert sorted(first[:9]) == sorted(first[9:]) == sorted(second[:9]) == items
    assert len({tuple(first[:9]), tuple(first[9:]), tuple(second[:9])}) == 3


def test_a_trace_of_arrivals_is_read_from_a_file_and_starts_at_0(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("12.5,anything\n10\n\n14\n")
    assert read_trace(path) == (0, 2.5, 4)
    path.write_text("soon\n")
    with pytest.raises(UsageError, match="seconds"):
        read_trace(path)


# -- sources --------------------------------------------------------------------------------------------------


def test_heldout_items_are_the_same_each_time_and_a_prefix_of_longer_lists():
    items = heldout_items(60, 0, 32)
    assert items == heldout_items(60, 0, 32) == heldout_items(500, 0, 32)[:60]
    assert items != heldout_items(60, 1, 32)


def test_heldout_items_have_ids_of_their_own_beyond_the_file_as_well():
    items = heldout_items(900, 0, 32)
    assert len({item.id for item in items}) == 900
    assert len({(item.prompt, item.temperature, item.seed) for item in items}) == 900


def test_heldout_items_mix_tasks_and_sample_half_of_each():
    items = heldout_items(80, 0, 32)
    tasks = {item.task for item in items}
    assert len(tasks) == 10
    for task in tasks:
        temperatures = [item.temperature for item in items if item.task == task]
        assert sorted(temperatures) == [0] * 4 + [TEMPERATURE] * 4


def test_synthetic_lengths_are_around_their_medians_and_their_prompts_within_the_vocabulary():
    items = synthetic_items(600, 3, Shape(prompt=50, output=20, vocabulary=100))
    assert items == synthetic_items(600, 3, Shape(prompt=50, output=20, vocabulary=100))
    assert statistics.median(len(item.prompt) for item in items) == pytest.approx(50, rel=0.15)
    assert statistics.median(item.max_tokens for item in items) == pytest.approx(20, rel=0.15)
    assert max(max(item.prompt) for item in items) == 99
    assert all(item.ignore_eos for item in items)


def test_synthetic_prompts_share_prefixes_and_never_outgrow_the_context():
    items = synthetic_items(200, 0, Shape(prompt=200, sigma=1.5, prefixes=3, prefix=40, longest=256))
    assert len({item.prompt[:40] for item in items}) == 3
    assert max(len(item.prompt) + item.max_tokens for item in items) <= 256


def test_chats_of_every_form_are_read(tmp_path):
    path = tmp_path / "chats.jsonl"
    said = (("human", "f"), ("gpt", "x"), ("human", "g"))
    forms = [
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 7, "id": 3},
        {"prompt": "b", "temperature": 0.5, "seed": 9},
        {"question_id": 81, "turns": ["c", "d", "e"]},
        {"conversations": [{"from": who, "value": text} for who, text in said]},
    ]
    path.write_text("\n".join(json.dumps(form) for form in forms) + "\n\n")
    messages, text, turns, recorded_chat = read_chats(path, count=9, max_tokens=5, turns=2)
    assert (messages.prompt, messages.max_tokens, messages.id) == ((ChatMessage("user", "a"),), 7, "3")
    assert (text.prompt, text.max_tokens, text.temperature, text.seed) == ("b", 5, 0.5, 9)
    assert (turns.prompt, turns.turns) == ((ChatMessage("user", "c"),), ("d",))
    assert (recorded_chat.prompt, recorded_chat.turns) == ((ChatMessage("user", "f"),), ("g",))
    path.write_text(json.dumps(forms))
    assert len(read_chats(path, count=3, max_tokens=5)) == 3


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "3",
        '{"question": "x"}',
        '{"turns": []}',
        '{"turns": [3]}',
        '{"messages": [{"role": "user"}]}',
        '{"conversations": [{"from": "gpt", "value": "x"}]}',
        '{"prompt": "x", "max_tokens": 0}',
        '{"prompt": "x", "temperature": true}',
    ],
)
def test_a_line_that_cannot_be_asked_is_named(tmp_path, line):
    path = tmp_path / "chats.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n\n{line}\n')
    with pytest.raises(UsageError, match=r"chats\.jsonl:3"):
        read_chats(path, count=9, max_tokens=5)


def test_an_empty_file_and_a_missing_one_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="nothing to ask"):
        items_of(str(tmp_path / "empty.jsonl"), count=1, max_tokens=5)
    with pytest.raises(NotFound, match="heldout"):
        items_of(str(tmp_path / "missing.jsonl"), count=1, max_tokens=5)


# -- fleets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[server]\npolicy = 3", "policy"),
        ("[server]\nspeed = 3", "speed"),
        ("[device]\ncount = 3", "device"),
        ('[[device]]\ncount = 1\n[[device]]\ndevice = "pi-7"', "pi-7"),
        ('[[device]]\nlink = "string"', "string"),
        ("[[device]]\ncount = 0", "no devices"),
        ('[[device]]\ndraft = "9b"\ndevice = "pi-5"', "9b"),
        ("dilation = 0", "dilation"),
    ],
)
def test_a_fleet_that_makes_no_sense_is_refused_by_name(tmp_path, text, problem):
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises((UsageError, NotFound), match=problem):
        read_fleet(path)


def test_the_bundled_fleets_can_be_read_and_scaled():
    for path in FLEETS.glob("*.toml"):
        fleet = fleet_of(BenchServeConfig(fleet=path.stem, users=50, dilation=3))
        assert (fleet.users, fleet.dilation) == (50, 3)
        assert label(fleet) == "emulated"
        assert sessions(fleet.server) >= read_fleet(path).users


def test_baselines_go_past_the_hubs_of_a_fleet():
    home = read_fleet(FLEETS / "home.toml")
    bare = past_hubs(home)
    assert home.hub and not bare.hub
    assert [group.link for group in bare.groups] == ["wifi-good+wan-60"]
    assert past_hubs(bare) == bare
    direct = replace(home, groups=(replace(home.groups[0], direct=True),))
    assert past_hubs(direct).groups == direct.groups


def test_a_target_that_leaves_no_room_for_a_session_is_refused():
    with pytest.raises(UsageError, match="dense-70b"):
        sessions(Server(accelerator="rtx-4090", target="dense-70b"))


def test_what_the_server_waits_for_is_stretched():
    words = command(Server(accelerator="a100-80", draft_wait=0.25, policy="static"), 8)
    assert words[words.index("--draft-wait") + 1] == "2.0"
    assert words[words.index("--policy") + 1] == "static"
    assert "accelerator:load" in words[words.index("--engine") + 1]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"baselines": "device-only", "workload": "synthetic"}, "device-only"),
        ({"fleet": "kitchen", "url": "http://x"}, "--url"),
        ({"arrivals": "trace"}, "--trace"),
        ({"fleet": "nowhere"}, "kitchen"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(flags, problem):
    with pytest.raises((UsageError, NotFound), match=problem):
        bench_serve(BenchServeConfig(**flags))


# -- summaries ----------------------------------------------------------------------------------------------------


def test_latencies_follow_vllms_formulas():
    figures = summarise(result(record(), record(arrivals=((11.5, 1), (13.5, 1)))), Slo())
    assert figures["mean_ttft_ms"] == 1000  # 500 and 1500
    assert figures["std_ttft_ms"] == 500
    assert figures["p99_ttft_ms"] == pytest.approx(1490)
    assert figures["mean_tpot_ms"] == pytest.approx((1500 / 7 + 2000) / 2, rel=1e-4)
    assert figures["mean_itl_ms"] == pytest.approx((500 + 1000 + 2000) / 3, rel=1e-4)
    assert figures["median_e2el_ms"] == 2750


def test_throughput_counts_what_happened_within_the_window_whenever_it_was_asked_for():
    early = record(sent=8.0, arrivals=((9.0, 2), (12.0, 4)))
    cut = record(arrivals=((11.0, 3),), finish_reason="")
    late = record(sent=19.0, arrivals=((19.5, 1), (20.5, 7)), finish_reason="")
    figures = summarise(result(early, cut, late, record()), Slo())
    assert figures["total_output_tokens"] == 4 + 3 + 1 + 8
    assert figures["output_throughput"] == 1.6
    assert (figures["completed"], figures["request_throughput"]) == (2, 0.2)
    assert figures["total_input_tokens"] == 10
    assert figures["mean_e2el_ms"] == 2000  # of the one that was sent within the window and finished


def test_goodput_needs_all_limits_and_failures_have_none():
    fast, slow = record(), record(arrivals=((10.5, 1), (18.0, 4)))
    failed = record(error="lost", finish_reason="")
    both = Slo(ttft_s=1, tpot_s=0.5, e2el_s=5)
    assert summarise(result(fast, slow, failed), both)["request_goodput"] == 0.1
    assert summarise(result(fast, slow, failed), Slo(ttft_s=0.4))["request_goodput"] == 0
    assert summarise(result(fast, slow, failed), Slo())["failed"] == 1


def test_users_are_served_by_their_pace_and_one_without_an_answer_is_not():
    quick = record(user=0)  # 7 tokens in 1.5 s
    slow = record(user=1, arrivals=((10.5, 1), (18.5, 4)))  # 4 tokens in 8 s
    unheard = record(user=2, finish_reason="", arrivals=())
    figures = summarise(result(quick, slow, unheard), Slo(pace=4))
    assert (figures["served"], figures["users"]) == (1, 3)
    assert figures["pace_median"] == 0.5


def test_speculation_is_told_by_position_and_with_what_was_wasted():
    rounds = [Round(10, 10.1, 3, 3), Round(11, 11.1, 3, 1), Round(12, 12.1, 1, 0)]
    figures = summarise(result(record(rounds=rounds, wasted=6)), Slo())
    assert figures["acceptance_rate"] == pytest.approx(4 / 7, rel=1e-4)
    assert figures["acceptance_per_position"] == [pytest.approx(2 / 3, rel=1e-4), 0.5, 0.5]
    assert figures["tokens_per_round"] == pytest.approx(1 + 4 / 3, rel=1e-4)
    assert (figures["drafted_tokens"], figures["wasted_draft_tokens"]) == (10, 6)
    assert figures["wasted_share"] == 0.6


def test_a_silent_release_is_counted_after_its_timeout_only():
    rounds = [Round(10, 10.4, 4, 1), Round(11, 11.6, 4, 3)]
    figures = summarise(result(record(rounds=rounds)), Slo())
    assert (figures["released_unverified"], figures["released_wrong"]) == (4, 1)
    sooner = summarise(result(record(rounds=rounds)), Slo(), release_s=0.3)
    assert (sooner["released_unverified"], sooner["released_wrong"]) == (8, 4)


def test_server_and_traffic_are_told_per_token():
    totals = {
        "steps": 10,
        "step_sessions": 40,
        "positions": 90,
        "tokens": 60,
        "stale_drafts": 2,
        "busy_s": 5.0,
    }
    figures = summarise(result(record(bytes_up=80, bytes_down=160), **totals), Slo())
    assert (figures["mean_batch"], figures["positions_per_token"], figures["busy_share"]) == (4, 1.5, 0.5)
    assert (figures["bytes_up_per_token"], figures["bytes_down_per_token"]) == (10, 20)
    assert (figures["steps"], figures["stale_drafts"]) == (10, 2)


def test_a_run_without_any_request_has_a_summary_that_json_takes():
    figures = summarise(result(), Slo())
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    at_once = summarise(result(record(arrivals=((10.5, 8),))), Slo())
    json.dumps(at_once, allow_nan=False)


def test_only_the_difference_of_two_readings_counts():
    before, after = ServerTotals(3, 9, 20, 10, 1, 0.5), ServerTotals(5, 15, 50, 30, 1, 2.0)
    assert between(before, after) == ServerTotals(2, 6, 30, 20, 0, 1.5)


def test_a_pace_counts_what_was_read_in_the_window_of_answers_that_are_not_finished_too():
    steady = record(sent=2.0, arrivals=tuple((4.0 + second, 10) for second in range(18)), finish_reason="")
    begun = record(user=1, sent=9.0, arrivals=((9.5, 10), (14.0, 30)), finish_reason="")
    silent = record(user=2, sent=11.0, arrivals=((12.0, 10), (13.0, 10)), finish_reason="")
    never = record(user=3, sent=1.0, arrivals=((2.0, 5),), finish_reason="")
    found = paces(result(steady, begun, silent, never))
    assert found[0] == 10  # from the first token in the window to the last
    assert found[1] == 0  # one chunk in the window, and then nothing for six seconds
    assert found[2] == pytest.approx(10 / 8)  # and this one waits for seven
    assert found[3] == 0


# -- devices of a load --------------------------------------------------------------------------------------------


def test_bytes_of_a_link_are_shared_by_the_requests_that_are_open():
    counted = [0, 0]
    shares = Shares(lambda: (counted[0], counted[1]))
    first, second = record(), record()
    counted[:] = [100, 100]  # nobody's
    shares.enter(first)
    counted[:] = [110, 120]
    shares.enter(second)
    counted[:] = [115, 123]
    shares.leave(first)
    counted[:] = [116, 124]
    shares.leave(second)
    assert first.bytes_up + second.bytes_up == 16
    assert (first.bytes_up, first.bytes_down) == (12, 21)
    assert (second.bytes_up, second.bytes_down) == (4, 3)


class Echo:
    """A stream that opens whatever it is asked."""

    def __init__(self):
        self.sent = []

    async def send(self, message):
        self.sent.append(message)

    async def receive(self):
        return Opened((1, 2, 3), bytes(16), b"", Limits(8, 100))

    async def close(self, linger=0.0):
        pass


async def test_messages_are_weighed_and_the_time_of_a_draft_is_that_of_its_first_sending():
    weight, clock = record(), Clock()
    session = TimedSession(weighed(Echo, weight), Open((1, 2, 3)), RetryPolicy(), clock)
    await session.open()
    opened = (weight.bytes_up, weight.bytes_down)
    draft = Draft(1, DraftBlock(3, (DraftToken(7),)))
    await session.submit(draft)
    first = session.submitted
    await session._reopen()
    assert draft in session._stream._inner.sent, "it goes along to the new stream"
    assert session.submitted == first > 0
    await session._stream.send(Cancel())
    assert opened[0] > 5 and opened[1] > 16  # the key alone is 16 bytes
    assert weight.bytes_up > opened[0] + 10


async def test_a_device_without_a_drafter_answers_at_once_with_nothing():
    future = NoDrafts().draft(Truth((1, 2, 3)), BlockBudget(4))
    assert future.done()
    assert future.result() == Drafted(DraftBlock(3), 0.0)


def test_tokens_of_an_answer_are_shared_by_its_chunks():
    arrivals = shared(10, [(1.0, 5), (2.0, 6), (3.0, 20)])
    assert arrivals == [Arrival(1.0, 2), Arrival(2.0, 1), Arrival(3.0, 7)]


class Deaf:
    """Answers for ever, and does not hear the first cancel."""

    async def ask(self, item, record):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            record.error = "cancelled in vain"


async def test_a_run_ends_even_if_a_user_loses_his_cancel():
    load = Load(warmup=0.01, duration=0.02)
    run = Run(Clock(), load, heldout_items(3, 0, 4), [])
    await asyncio.wait_for(
        run.through([Seat(0, 0, Deaf()), Seat(1, 0, Deaf())], None, [], lambda share: None), 5
    )
    assert [record.error for record in run.records] == ["cancelled in vain"] * 2


def _trace(item, **changes):
    facts = {"prompt_ids": (1,), "target_ids": (2, 3), "finish_reason": "length", "proposals": ()}
    return ItemTrace(item, **{**facts, **changes})


def test_items_that_were_not_recorded_are_refused():
    items = heldout_items(2, 0, 2)
    first, second = (item.id for item in items)

    def of(*found):
        return recorded(items, TraceSet("tiny", "llamacpp", {}, found))

    assert set(of(_trace(first), _trace(second, prompt_ids=(4,)))) == {first, second}
    with pytest.raises(UsageError, match=second):
        of(_trace(first))
    with pytest.raises(UsageError, match="recorded for 1 tokens"):
        of(_trace(first, target_ids=(2,)), _trace(second, prompt_ids=(4,)))
    with pytest.raises(UsageError, match="same prompt"):
        of(_trace(first), _trace(second))


def test_a_fleet_is_real_until_something_stands_for_something_else():
    assert label(Fleet()) == "real"
    assert label(Fleet(groups=(Group(link="lte"),))) == "emulated"
    assert label(Fleet(Server(accelerator="a100-80"))) == "emulated"
