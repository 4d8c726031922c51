"""Devices under load without any process: bytes, times, recorded items. `pytest tests/lab/test_load_devices.py`"""

import asyncio

import pytest

from edge_client.link.remote import RetryPolicy
from edge_client.round.draft_job import BlockBudget, Drafted
from lab.testbed.emulation.replay import NoDrafts
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.load.device_drafts import recorded
from lab.testbed.load.http_device import shared
from lab.testbed.load.load import Load
from lab.testbed.load.records import Arrival, Clock
from lab.testbed.load.run import Run, label
from lab.testbed.load.site import Seat
from lab.testbed.load.sources import heldout_items
from lab.testbed.load.wire import Shares, TimedSession, weighed
from lab.testbed.traces import ItemTrace, TraceSet
from opensled.core.errors import UsageError
from opensled.core.messages import Cancel, Draft, DraftBlock, DraftToken, Limits, Open, Opened
from opensled.core.protocol import Truth
from tests.lab.run_records import record


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
