"""A device on a low battery drafts nothing, and its board is looked at without waiting."""

from __future__ import annotations

import asyncio
import threading

import pytest

from edge_client.lengths.base import DraftLengthPolicy
from edge_client.lengths.battery import BatterySaver
from edge_client.lengths.board_watch import EVERY_S, board_watch
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.hint import HintLength
from edge_client.lengths.words import draft_status
from hw_profiles.sysfs import BoardState
from opensled.core.answer import Task
from opensled.core.messages import DraftToken, Limits
from opensled.core.turns import Turn
from tests.devices import device_on, read
from tests.serving import GREEDY, PROMPT, serving
from tests.system import until

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
def test_below_the_floor_nothing_is_drafted(state: BoardState, length: int) -> None:
    policy = saver(state)
    assert policy.most(16, 8) == length and policy.nodes(64, 8) == (60 if length else 0)


def test_the_reason_is_said_and_forgotten_once_it_is_charged() -> None:
    limits, board = Limits(16, 1000), [LOW]
    policy = BatterySaver(HintLength(), 20.0, lambda: board[0])
    status = draft_status(policy, limits, Turn(8))
    assert not status.drafting
    assert status.words == "not drafting: the battery is at 15 %, and drafts rest below 20 %"
    board[0] = BoardState(battery_percent=90)
    assert draft_status(policy, limits, Turn(8)).words == "drafts of 8 tokens; the server asks for them"


def test_above_it_the_policy_decides_all_else() -> None:
    inner = ConfidenceLength(5, tree=9, confidence=0.5)
    policy = saver(BoardState(), inner)
    assert policy.needs_confidence and policy.ending == inner.ending
    assert policy.goes_on(3)
    assert [policy.belongs(DraftToken(1, chance), 0) for chance in (0.4, 0.6)] == [False, True]


async def test_the_server_writes_the_answer_of_a_device_on_a_low_battery() -> None:
    async with serving() as (_, address), device_on(address) as device:
        device._lengths = saver(LOW)
        chunks = await read(device, Task(PROMPT, GREEDY))
        assert chunks[-1].stats.completion_tokens and not device.telemetry.drafts.drafts
        assert "battery" in device.status.words


def test_nobody_waits_for_a_slow_board() -> None:
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
