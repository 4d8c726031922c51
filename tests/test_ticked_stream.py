"""A stream whose frames leave at the multiples of a tick. Run: pytest tests/test_ticked_stream.py"""

import asyncio
from contextlib import asynccontextmanager

import pytest

from opensled import ticked_stream
from opensled.errors import Unreachable
from opensled.messages import Dummy
from opensled.shaping import LEAST_FRAMES, is_whole
from opensled.ticked_stream import TickedStream

TICK = 0.01  # seconds


class Line:
    """What left, when, and what arrives."""

    def __init__(self) -> None:
        self.sent, self.times = [], []
        self.arriving: asyncio.Queue = asyncio.Queue()
        self.broken = False

    async def send(self, message) -> None:
        if self.broken:
            raise Unreachable("broken")
        self.sent.append(message)
        self.times.append(asyncio.get_running_loop().time())

    async def receive(self):
        message = await self.arriving.get()
        if isinstance(message, Exception):
            raise message
        return message

    @property
    def content(self):
        return [message for message in self.sent if not isinstance(message, Dummy)]


@asynccontextmanager
async def ticking(**options):
    line = Line()
    ticked = TickedStream(line.send, line.receive, TICK, **options)
    try:
        yield line, ticked
    finally:
        await ticked.close()


async def frames(ticked, count):
    while ticked.frames < count:
        await ticked._after_tick()


def test_a_frame_leaves_at_every_tick_whether_there_is_something_to_send_or_not():
    async def scenario():
        start = asyncio.get_running_loop().time()
        async with ticking(start=start) as (line, ticked):
            await frames(ticked, 3)
            await ticked.send("a")
            await frames(ticked, 8)
        assert line.content == ["a"] and len(line.sent) == 8
        multiples = [int((at - start) / TICK) for at in line.times]
        assert multiples == sorted(set(multiples)), "two frames in one tick"

    asyncio.run(scenario())


def test_messages_leave_in_order_one_a_tick():
    async def scenario():
        async with ticking() as (line, ticked):
            for message in "abcd":
                await ticked.send(message)
            await ticked.flush()
            assert line.content == list("abcd")
            assert [int((at - line.times[0]) / TICK + 0.5) for at in line.times[:4]] != [0, 0, 0, 0]

    asyncio.run(scenario())


def test_messages_that_can_be_joined_leave_as_one():
    async def scenario():
        async with ticking(join=lambda waiting, message: waiting + message) as (line, ticked):
            for message in "abcd":
                await ticked.send(message)
            await ticked.flush()
            assert line.content == ["abcd"]

    asyncio.run(scenario())


def test_dummies_that_arrive_are_dropped_and_the_end_is_told():
    async def scenario():
        async with ticking() as (line, ticked):
            for message in (Dummy(), "a", Dummy(), "b", None):
                line.arriving.put_nowait(message)
            assert [await ticked.receive() for _ in range(4)] == ["a", "b", None, None]
        async with ticking() as (line, ticked):
            line.arriving.put_nowait(Unreachable("gone"))
            for _ in range(2):
                with pytest.raises(Unreachable):
                    await ticked.receive()

    asyncio.run(scenario())


def test_a_receive_that_is_cancelled_loses_nothing_and_leaves_the_stream_alone():
    async def scenario():
        async with ticking() as (line, ticked):
            waiting = asyncio.ensure_future(ticked.receive())
            await frames(ticked, 1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            line.arriving.put_nowait("a")
            assert await ticked.receive() == "a"

    asyncio.run(scenario())


def test_an_answer_is_filled_up_to_a_power_of_two_while_arrivals_are_dropped():
    async def scenario():
        async with ticking() as (line, ticked):
            await ticked.send("a")
            for number in range(500):
                line.arriving.put_nowait(number)
            await ticked.fill()
            assert ticked.frames == len(line.sent) == LEAST_FRAMES and is_whole(ticked.frames)
            assert line.content == ["a"] and line.arriving.empty()

    asyncio.run(scenario())


def test_nothing_is_filled_up_for_a_peer_that_is_gone():
    async def scenario():
        async with ticking() as (line, ticked):
            line.arriving.put_nowait(None)
            await ticked.fill()
            assert ticked.frames < LEAST_FRAMES

    asyncio.run(scenario())


def test_a_peer_that_reads_nothing_more_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(ticked_stream, "SLACK_SECONDS", 0.05)
    monkeypatch.setattr(ticked_stream, "LEAST_FRAMES", 4)

    async def scenario():
        async with ticking() as (_, ticked):
            stuck = asyncio.Event()
            ticked._send = lambda message: stuck.wait()
            await ticked.send("a")
            started = asyncio.get_running_loop().time()
            await ticked.fill()
            assert asyncio.get_running_loop().time() - started < 5 and not ticked.frames

    asyncio.run(scenario())


def test_a_broken_line_is_an_error_of_the_next_send_and_stops_everything():
    async def scenario():
        async with ticking() as (line, ticked):
            line.broken = True
            await ticked.send("a")
            await ticked.flush()
            await ticked.fill()
            with pytest.raises(Unreachable):
                await ticked.send("b")

    asyncio.run(scenario())


def test_an_end_of_another_kind_is_given_on_and_nothing_is_read_after_it():
    async def scenario():
        line = Line()
        stream = TickedStream(line.send, line.receive, TICK, is_end=lambda message: message == "end")
        line.arriving.put_nowait("end")
        line.arriving.put_nowait("unread")
        try:
            assert [await stream.receive(), await stream.receive()] == ["end", "end"]
        finally:
            await stream.close()
        assert line.arriving.qsize() == 1

    asyncio.run(scenario())
