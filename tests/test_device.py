"""A device over a fake target: the pool of drafters, stop strings, and the account of an answer."""

import asyncio
import math
import re
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.device.device import _length_policy, connect
from edge_client.device.prompt_config import GenerateConfig
from edge_client.device.request_defaults import RequestDefaults
from edge_client.device.telemetry import Telemetry
from edge_client.lengths import LENGTH_POLICIES, length_policy
from edge_client.lengths.base import UNADVISED, DraftLengthPolicy, LengthOptions, pull_tokens
from edge_client.lengths.battery import BatterySaver
from edge_client.lengths.board_watch import EVERY_S, board_watch
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.hint import HintLength
from edge_client.lengths.words import draft_status
from edge_client.round.commits import Commit
from hw_profiles.sysfs import BoardState
from opensled.cli.config import options
from opensled.core.answer import Stats, Task
from opensled.core.errors import NotFound, Overloaded, Unreachable, UsageError
from opensled.core.messages import DraftToken, Limits
from opensled.core.turns import Turn
from opensled.text.answer_text import AnswerText
from tests.devices import TOKENIZER, OracleFactory, device_on, read
from tests.fake_target import _Text as TinyText
from tests.fakes import continuation
from tests.gated_target import SlowEngine
from tests.loops import cancelled
from tests.serving import GREEDY, PROMPT, serving
from tests.small_tokenizer import small_tokenizer
from tests.system import until
from verify_server.admission.session_manager import SessionLimits

LENGTH = GREEDY.max_tokens


@asynccontextmanager
async def device_and_manager(parallel=1, **server):
    async with serving(**server) as (manager, address), device_on(address, parallel) as device:
        yield device, manager


async def test_the_account_adds_up():
    async with device_and_manager(engine=SlowEngine(num_blocks=100)) as (device, _):
        chunks = await read(device)
        ids = [id for chunk in chunks for id in chunk.token_ids]
        stats = chunks[-1].stats
        assert ids == continuation(PROMPT, LENGTH)
        assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
        assert (stats.prompt_tokens, stats.completion_tokens) == (3, LENGTH)
        assert stats.round_tokens + stats.server_decoded == LENGTH
        assert 0 < stats.accepted <= stats.drafted and stats.seconds > 0
        origins = [origin for chunk in chunks for origin in chunk.origins]
        assert len(origins) == LENGTH and origins.count("accepted") == stats.accepted
        assert origins.count("server") == stats.server_decoded
        assert origins.count("recovered") + origins.count("bonus") == stats.round_tokens - stats.accepted


async def test_more_readers_than_drafters_all_get_their_text():
    engine = SlowEngine(num_blocks=100)  # else the server may have written all before the device has drafted
    async with device_and_manager(parallel=1, limits=SessionLimits(linger=0.05), engine=engine) as (
        device,
        _,
    ):
        prompts = [(id, 2, 3) for id in range(1, 6)]
        answers = await asyncio.gather(*(read(device, Task(prompt, GREEDY)) for prompt in prompts))
        for prompt, chunks in zip(prompts, answers, strict=True):
            assert [id for c in chunks for id in c.token_ids] == continuation(prompt, LENGTH)
        assert device._factory.created == 1
        assert sum(chunks[-1].stats.drafted == 0 for chunks in answers) == 4


async def test_a_drafter_is_used_again_for_the_next_answer():
    async with device_and_manager() as (device, _):
        for id in (1, 2, 1):
            chunks = await read(device, Task((id, 5), GREEDY))
            assert [t for c in chunks for t in c.token_ids] == continuation((id, 5), LENGTH)
        assert device._factory.created == 1


async def test_a_stop_string_ends_the_sequence_on_the_server_too():
    async with device_and_manager() as (device, manager):
        ids = continuation(PROMPT, LENGTH)
        stop = TOKENIZER.decode(ids[8:11])
        whole = TOKENIZER.decode(ids)
        chunks = await read(device, Task(PROMPT, GREEDY, (stop,)))
        assert "".join(chunk.text for chunk in chunks) == whole[: whole.index(stop)]
        last = chunks[-1]
        assert last.finish_reason == "stop" and last.stats.completion_tokens <= 11
        assert last.stats.completion_tokens == sum(len(chunk.token_ids) for chunk in chunks)
        await until(lambda: not manager.loop.machine.sessions)


@pytest.mark.parametrize("stop", [(), ("zz",)])
async def test_an_answer_can_be_cut_behind_any_chunk(stop):
    """The text so far, what a stop string held back included, is that of its tokens."""
    async with device_and_manager(engine=SlowEngine(num_blocks=100)) as (device, manager):
        told, answer = [], device.answer(Task(PROMPT, GREEDY, stop))
        async for chunk in answer:
            told.append(chunk)
            if sum(len(each.token_ids) for each in told) >= 3:
                break
        last = told[-1].cut()
        await answer.aclose()
        ids = [id for each in told for id in each.token_ids]
        assert "".join(each.text for each in (*told, last)) == TOKENIZER.decode(ids)
        assert last.finish_reason == "length" and last.stats.completion_tokens == len(ids)
        await until(lambda: not manager.remembered)


async def test_a_full_server_is_told_at_once():
    async with device_and_manager(limits=SessionLimits(max_sessions=0)) as (device, _):
        with pytest.raises(Overloaded):
            await asyncio.wait_for(read(device), 20)


def test_text_counts_the_token_that_completes_a_stop_string():
    ids = tuple(TOKENIZER.encode("one two three"))
    text = AnswerText(TOKENIZER, ("two",))
    kept, shown, *_ = text.commit(ids)
    assert shown == "one " and text.stopped_by and text.end() == ("", "")
    assert "two" in TOKENIZER.decode(kept) and "two" not in TOKENIZER.decode(kept[:-1])


def test_counting_commits():
    counts, stats = Telemetry(), Stats(5, 0)
    counts.commit(stats, Commit((1, 2), 0, 0), 2, seconds=0.5)
    counts.commit(stats, Commit((3, 4, 5), 4, 2), 3, seconds=0.75)
    assert (stats.completion_tokens, stats.server_decoded) == (5, 2)
    assert (stats.rounds, stats.drafted, stats.accepted, stats.round_tokens) == (1, 4, 2, 3)
    counts.commit(stats, Commit((6, 7, 8), 4, 2), 1, seconds=1.0)  # a stop string after its first token
    assert (stats.accepted, stats.round_tokens, stats.first_token) == (3, 4, 0.5)
    assert (counts.tokens, counts.unasked, sum(counts.first_token.counts)) == (6, 2, 1)


def whole_block(policy, proposals, limit, interrupted):
    return tuple(pull_tokens(policy, proposals, policy.most(limit), interrupted))


@pytest.mark.parametrize(
    ("rule", "taken"),
    [
        (FixedLength(2), 2),
        (FixedLength(9), 4),
        (ConfidenceLength(9, confidence=0.5), 2),
        (FixedLength(0), 0),
        (ConfidenceLength(9, confidence=0.95), 0),
        (FixedLength(), UNADVISED),
    ],
)
def test_the_stop_rule(rule, taken):
    proposals = iter([DraftToken(1, 0.9), DraftToken(2, 0.6), DraftToken(3, 0.4), DraftToken(4, 0.9)])
    assert len(whole_block(rule, proposals, 8, lambda: False)) == taken


@pytest.mark.parametrize(
    ("length", "rule"), [(0, FixedLength(UNADVISED)), (7, FixedLength(7)), (99, FixedLength(99))]
)
async def test_what_the_flag_of_the_draft_length_means(length, rule, caplog):
    async with serving(text=TinyText()) as (_, address):
        config = GenerateConfig(
            server=address, drafter="lookup", draft_length=length, stop="fixed", battery_floor=0
        )
        device = await connect(config)
        assert device._lengths == rule
        await device.close()
    beyond = f"--draft-length {length}: the server takes drafts of at most"
    assert (beyond in caplog.text and f"max-draft in [limits] to {length}" in caplog.text) == (length == 99)


async def test_what_a_device_asks_of_its_server_and_what_a_single_answer_changes():
    async with serving() as (manager, address), device_on(address) as device:
        device._defaults = RequestDefaults(pace=9.0, background=True, device="kitchen")
        tasks = [Task(PROMPT, GREEDY), Task(PROMPT, GREEDY, pace=3.0), Task(PROMPT, GREEDY, background=False)]
        seen = [await opened_by(device, manager, task) for task in tasks]
        assert seen == [(9.0, True), (3.0, True), (9.0, False)]
        assert list(manager.devices._devices["local"]) == ["kitchen"]


async def opened_by(device, manager, task):
    """Pace and background of the session that serves `task`."""
    answering = asyncio.ensure_future(read(device, task))
    await until(lambda: manager.remembered)
    (session,) = manager.remembered
    await answering
    await until(lambda: not manager.remembered)
    return session.timing.pace, session.terms.background


async def test_an_answer_for_which_no_drafter_is_left_is_a_strangers():
    async with device_and_manager(parallel=1) as (device, _):
        device._defaults = RequestDefaults(device="kitchen")
        request = [device._open(Task(PROMPT, GREEDY), drafts).device for drafts in (True, False)]
        assert request == ["kitchen", ""]
        async with device._drafter() as first, device._drafter() as second:
            assert (first.drafts, second.drafts) == (True, False)


async def test_a_device_without_a_name_draws_one_for_each_run():
    async with serving(text=TinyText()) as (_, address):
        config = GenerateConfig(server=address, drafter="none")
        devices = [await connect(config), await connect(config)]
        devices.append(await connect(replace(config, device_name="hall")))
        names = [device._defaults.device for device in devices]
        assert len(set(names)) == 3 and all(names) and names[2] == "hall"
        for device in devices:
            await device.close()


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("pace", -1.0, "from 0 to 1000000"),
        ("pace", math.nan, "out of range"),
        ("device_name", "ö" * 33, "the maximum is 64 bytes"),
        ("device_name", "a\nb", "cannot be printed"),
    ],
)
def test_flags_of_no_use_are_refused(flag, value, said):
    item = {item.name: item for item in options(GenerateConfig)}[flag]
    with pytest.raises(UsageError, match=said):
        item.check_value(value, item.flag)


def test_the_stop_rule_obeys_limit_and_interrupt():
    def forever():
        while True:
            yield DraftToken(1, 1.0)

    assert len(whole_block(FixedLength(8), forever(), 3, lambda: False)) == 3
    looks = iter([False, False, True])
    assert len(whole_block(FixedLength(8), forever(), 8, lambda: next(looks))) == 2


async def test_a_foreign_draft_model_drafts_by_text(capsys, plain_logs):
    async with serving(text=TinyText(small_tokenizer())) as (_, address):
        config = GenerateConfig(server=address, drafter="llamacpp", draft_model="tiny-draft", threads=1)
        device = await connect(config)
        assert device.drafter_name.startswith("llamacpp tiny-draft")
        await device.close()
    said = capsys.readouterr().err
    assert re.search(r"note: the draft model has another vocabulary than 'fake': .* drafts by text", said)


async def test_what_connect_refuses(tmp_path):
    with pytest.raises(Unreachable, match="opensled serve"):
        await connect(GenerateConfig(server="127.0.0.1:1", drafter="none"))
    with pytest.raises(NotFound, match=r"token file .* does not exist"):
        await connect(GenerateConfig(token_file=str(tmp_path / "none")))


async def test_the_thread_that_makes_a_drafter_ends():
    """Else its OpenMP threads stay, and those of the drafter's own thread sleep between two operations."""

    class Watched(OracleFactory):
        def create(self):
            makers.append(threading.current_thread())
            return super().create()

    makers: list[threading.Thread] = []
    async with serving(engine=SlowEngine(num_blocks=100)) as (_, address), device_on(address) as device:
        device._factory = Watched()
        assert (await read(device))[-1].stats.rounds > 0
        assert [maker.is_alive() for maker in makers] == [False]


async def test_a_reader_who_leaves_while_a_drafter_is_made_does_not_cost_its_place():
    class Slow(OracleFactory):
        def create(self):
            assert may_go_on.wait(60)
            return super().create()

    may_go_on = threading.Event()
    async with serving(engine=SlowEngine(num_blocks=100)) as (_, address), device_on(address) as device:
        device._factory = Slow()
        leaving = asyncio.ensure_future(read(device))
        await until(lambda: not device._unused)
        await cancelled(leaving)
        may_go_on.set()
        assert (await read(device))[-1].stats.rounds > 0


# -- lengths of blocks --------------------------------------------------------------------------------------------


class Pairs(DraftLengthPolicy):
    """The least that a policy of one's own must say."""

    def most(self, limit: int, hint: int | None = None) -> int:
        return min(limit, 2 if hint is None else hint, 2)


NAMES = [*LENGTH_POLICIES.names(), f"{__name__}:Pairs"]
LIMITS = Limits(16, 1000, max_tree=64)
TOKEN = DraftToken(1, 0.9)


@pytest.fixture(params=NAMES)
def policy(request: pytest.FixtureRequest) -> DraftLengthPolicy:
    return length_policy(request.param, LengthOptions(length=6, tree=8))


def test_a_block_never_exceeds_its_limit_the_hint_or_the_length_of_its_owner(policy):
    for limit in (0, 1, 3, 16):
        for hint in (None, 0, 1, 2, 5, 9):
            assert 0 <= policy.most(limit, hint) <= min(limit, 6, 16 if hint is None else hint)
            assert 0 <= policy.nodes(limit, hint) <= min(limit, 8) * (hint != 0)


def test_a_pulled_block_stops_where_it_must(policy):
    assert not list(pull_tokens(policy, iter([TOKEN] * 4), 4, lambda: True))
    assert len(list(pull_tokens(policy, iter([TOKEN] * 2), 4, lambda: False))) <= 2


@given(name=st.sampled_from(NAMES), owner=st.integers(0, 20), hint=st.none() | st.integers(0, 40))
def test_it_says_what_it_does(name, owner, hint):
    policy = length_policy(name, LengthOptions(length=owner))
    status, length = draft_status(policy, LIMITS, Turn(hint)), policy.most(LIMITS.max_draft, hint)
    assert status.length == length and status.drafting == (length > 0)
    assert status.words.startswith(f"drafts of {length} token" if length else "not drafting: ")
    assert ("the server asks for them" in status.words) == (length > 0 and length == hint)


def test_the_hint_is_an_order():
    """A later one replaces an earlier one, up or down; before the first one the device drafts four."""
    free, bounded = HintLength(), HintLength(6)
    assert [free.most(16, hint) for hint in (None, 8, 0, 1, 12, 40)] == [UNADVISED, 8, 0, 1, 12, 16]
    assert [bounded.most(16, hint) for hint in (None, 8, 0, 1)] == [UNADVISED, 6, 0, 1]
    assert HintLength(2).most(16) == 2 and free.most(3) == 3


def test_a_fixed_length_is_only_ever_shortened():
    assert [FixedLength(6).most(16, hint) for hint in (None, 8, 0, 1)] == [6, 6, 0, 1]
    assert FixedLength(50).most(12) == 12


def test_what_the_flags_mean():
    for flags, policy in (
        ({"draft_length": 5}, HintLength(5)),
        ({"draft_tree": 60}, HintLength(tree=60)),
        ({"stop": "confidence", "draft_tree": 9}, ConfidenceLength(4, tree=9, confidence=0.4)),
        ({"stop": "fixed", "draft_length": 2}, FixedLength(2)),
    ):
        assert _length_policy(GenerateConfig(**flags), has_battery=False) == policy
    assert isinstance(_length_policy(GenerateConfig(), has_battery=True), BatterySaver)
    assert _length_policy(GenerateConfig(battery_floor=0), has_battery=True) == HintLength()


def test_what_is_no_policy_is_refused():
    with pytest.raises(UsageError, match="choose from hint, fixed, confidence"):
        length_policy("longest", LengthOptions())
    with pytest.raises(UsageError, match="not a draft-length policy"):
        length_policy("edge_client.lengths.base:UNADVISED", LengthOptions())


# -- a low battery ------------------------------------------------------------------------------------------------


LOW = BoardState(battery_percent=15, discharging=True)


def saver(state: BoardState, policy: DraftLengthPolicy = HintLength(tree=60)) -> BatterySaver:
    return BatterySaver(policy, 20.0, lambda: state)


@pytest.mark.parametrize(
    ("state", "length"),
    [
        (BoardState(), 8),  # a board without a battery
        (BoardState(battery_percent=15), 8),  # it is being charged
        (BoardState(battery_percent=20, discharging=True), 8),
        (LOW, 0),
    ],
)
def test_below_the_floor_nothing_is_drafted(state, length):
    policy = saver(state)
    assert policy.most(16, 8) == length and policy.nodes(64, 8) == (60 if length else 0)


def test_the_reason_is_said_and_forgotten_once_it_is_charged():
    limits, board = Limits(16, 1000), [LOW]
    policy = BatterySaver(HintLength(), 20.0, lambda: board[0])
    status = draft_status(policy, limits, Turn(8))
    assert not status.drafting
    assert status.words == "not drafting: the battery is at 15 %, and drafts rest below 20 %"
    board[0] = BoardState(battery_percent=90)
    assert draft_status(policy, limits, Turn(8)).words == "drafts of 8 tokens; the server asks for them"


def test_above_it_the_policy_decides_all_else():
    inner = ConfidenceLength(5, tree=9, confidence=0.5)
    policy = saver(BoardState(), inner)
    assert policy.needs_confidence and policy.ending == inner.ending
    assert policy.goes_on(3)
    assert [policy.belongs(DraftToken(1, chance), 0) for chance in (0.4, 0.6)] == [False, True]


async def test_the_server_writes_the_answer_of_a_device_on_a_low_battery():
    async with serving() as (_, address), device_on(address) as device:
        device._lengths = saver(LOW)
        chunks = await read(device, Task(PROMPT, GREEDY))
        assert chunks[-1].stats.completion_tokens and not device.telemetry.drafts.drafts
        assert "battery" in device.status.words


def test_nobody_waits_for_a_slow_board():
    now, reads, gate = [0.0], list[float](), threading.Event()

    def slow() -> BoardState:
        reads.append(now[0])
        gate.wait(60)
        return BoardState(throttled=True)

    watch = board_watch(slow, lambda: now[0])
    assert watch() == watch() == BoardState()  # the first look is still under way
    assert len(reads) == 1
    gate.set()

    asyncio.run(until(lambda: watch().throttled))
    now[0] += EVERY_S / 2
    watch()
    assert len(reads) == 1
    now[0] += EVERY_S
    watch()
    asyncio.run(until(lambda: len(reads) == 2))
