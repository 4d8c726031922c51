"""What holds for every registered draft-length policy, and for one of your own."""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.device.device import _length_policy
from edge_client.device.prompt_config import GenerateConfig
from edge_client.lengths import LENGTH_POLICIES, length_policy
from edge_client.lengths.base import UNADVISED, DraftLengthPolicy, LengthOptions, pull_tokens
from edge_client.lengths.battery import BatterySaver
from edge_client.lengths.board_watch import EVERY_S, board_watch
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.hint import HintLength
from edge_client.lengths.words import draft_status
from hw_profiles.sysfs import BoardState
from opensled.core.answer import Task
from opensled.core.errors import UsageError
from opensled.core.messages import DraftToken, Limits
from opensled.core.turns import Turn
from tests.devices import device_on, read
from tests.serving import GREEDY, PROMPT, serving
from tests.system import until


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
        for hint in (None, 1, 2, 5, 9):
            assert 0 <= policy.most(limit, hint) <= min(limit, 6, 16 if hint is None else hint)
            assert 0 <= policy.nodes(limit, hint) <= min(limit, 8)


def test_a_hint_of_zero_means_no_drafts(policy):
    assert policy.most(16, 0) == policy.nodes(16, 0) == 0
    assert not draft_status(policy, LIMITS, Turn(0)).drafting


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
