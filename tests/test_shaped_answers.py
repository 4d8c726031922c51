"""Shaped streams from end to end: the text is the target's own, and the frames tell nothing of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from edge_client.drafting import DraftThread
from edge_client.generate import generate
from edge_client.lengths.fixed import FixedLength
from edge_client.remote import RemoteSession
from edge_client.served_target import shaping_for
from edge_client.shaped_stream import ShapedStream
from opensled import codec
from opensled.errors import InvalidRequest, Unsupported
from opensled.framed import Framed
from opensled.messages import Dummy, Failure, Open, Opened, SamplingParams
from opensled.shaping import FRAME_BYTES, LEAST_FRAMES, OPENING_BYTES, SHAPING, Shaping
from tests.ahead_drafts import AheadDrafter
from tests.devices import device_on, read
from tests.fakes import IMPATIENT, FakeEngine, MemoryNetwork, OracleDrafter, Weather, continuation
from tests.serving import PROMPT, finish, first_reply, linked, serving
from tests.system import ask, running, until
from verify_server.session_manager import SessionLimits
from verify_server.shaped_wire import BURST, _at_most

PADDED, TICKED = Shaping(FRAME_BYTES), Shaping(FRAME_BYTES, 10)
FILLED = Shaping(FRAME_BYTES, 10, True)
SHAPINGS = (PADDED, TICKED, FILLED)
STORM = Weather(loss=0.2, duplicate=0.1, reorder=0.2, seed=5)
LONG = SamplingParams(temperature=0, max_tokens=40)


class Recorder:
    """A gRPC stream and what it carries: (upward, size) of every message."""

    def __init__(self, stream) -> None:
        self._stream, self.frames = stream, []

    async def send(self, message) -> None:
        assert isinstance(message, Framed)
        self.frames.append((True, codec.encode_client(message).ByteSize()))
        await self._stream.send(message)

    async def receive(self):
        message = await self._stream._call.read()
        if isinstance(message, codec.pb.ServerMessage):
            self.frames.append((False, message.ByteSize()))
            return codec.decode_server(message)
        return await self._stream.receive()

    async def close(self, linger: float = 0.0) -> None:
        await self._stream.close(linger)


class ShapedNetwork(MemoryNetwork):
    """A lossy network whose devices shape their streams."""

    shaping: Shaping = PADDED

    def connect(self):
        self.rests = getattr(self, "rests", [])
        stream = super().connect()
        return ShapedStream(stream, self.shaping, lambda rest: self.rests.append(asyncio.ensure_future(rest)))

    async def close(self) -> None:
        await super().close()
        await asyncio.gather(*self.rests, return_exceptions=True)


@pytest.mark.parametrize("shaping", SHAPINGS, ids=str)
@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
def test_the_text_is_the_targets_own(shaping, weather):
    kind = type("Network", (ShapedNetwork,), {"shaping": shaping})
    calm = weather == Weather()
    patience = replace(IMPATIENT, silence=5.0 if calm else 0.2)

    async def scenario():
        engine = FakeEngine(num_blocks=200)
        async with running(engine, draft_wait=0.05, weather=weather, network_type=kind) as network:
            prompts = [(1 + number, 2, 3) for number in range(3)]
            drafters = OracleDrafter(0.7, 0), AheadDrafter(0.9, 1), AheadDrafter(0.7, 2)
            asked = [
                ask(network, prompt, drafter, LONG, stop=FixedLength(4), patience=patience, shaping=shaping)
                for drafter, prompt in zip(drafters, prompts)
            ]
            for prompt, answer in zip(prompts, await asyncio.gather(*asked)):
                assert list(answer.tokens) == continuation(prompt, 40)
                assert sum(len(commit.tokens) for commit in answer.commits) == 40

    asyncio.run(scenario())


async def recorded(address, shaping, params, acceptance=0.8, tokens=None):
    """One answer over gRPC, read to its end or for so many tokens; its frames once the stream is over."""
    rests: list[asyncio.Future] = []
    async with linked(address) as link:
        recorder = Recorder(link.connect())

        def connect(address=""):
            return ShapedStream(recorder, shaping, lambda rest: rests.append(asyncio.ensure_future(rest)))

        session = RemoteSession(connect, Open(PROMPT, params, shaping=shaping))
        thread = DraftThread(OracleDrafter(acceptance), FixedLength(4))
        try:
            await session.open()
            commits = generate(session, thread, params)
            async for _ in commits:
                if tokens and len(session.truth.generated) >= tokens:
                    break
            await commits.aclose()
            read = len(recorder.frames)
            await asyncio.gather(*rests)
            return session.truth.generated, recorder.frames, read
        finally:
            thread.close()


def over_grpc(*answers, limits=SessionLimits(max_sessions=3, max_draft=8, linger=0.05)):
    """`recorded` for each of `answers`, its arguments after the address."""

    async def scenario():
        async with serving(limits=limits) as (manager, address):
            done = [await recorded(address, *answer) for answer in answers]
            assert not manager.loop.stats.failures
            return done

    return asyncio.run(scenario())


def sizes(frames):
    return Counter(frames)


def test_every_frame_has_one_size_whatever_it_carries():
    for _, frames, _ in over_grpc((PADDED, LONG, 1.0), (PADDED, LONG, 0.0)):
        assert {size for up, size in frames if up} == {OPENING_BYTES, FRAME_BYTES}
        assert {size for up, size in frames if not up} == {OPENING_BYTES, FRAME_BYTES}


def test_without_shaping_frames_tell_how_many_tokens_they_hold():
    """What the tests here would miss if the sizes were the same anyway."""
    wire = [codec.encode_server(codec.Verdict(10, (7,) * count)).ByteSize() for count in range(1, 6)]
    assert len(set(wire)) == 5


@pytest.mark.parametrize(
    ("params", "acceptance"),
    [(LONG, 0.0), (SamplingParams(temperature=0, max_tokens=3), 1.0)],
    ids=["long", "short"],
)
def test_a_filled_answer_has_as_many_frames_as_any_other(params, acceptance):
    ((tokens, frames, read),) = over_grpc((FILLED, params, acceptance))
    assert list(tokens) == continuation(PROMPT, params.max_tokens)
    down = [size for up, size in frames if not up]
    assert down == [OPENING_BYTES] + [FRAME_BYTES] * (LEAST_FRAMES - 1)
    assert read < len(frames), "the reader waited for dummies"


def test_an_answer_that_its_reader_cancels_goes_on_in_dummies():
    """When a stop string cuts the text is as telling as how long it is."""
    ((tokens, frames, read),) = over_grpc((FILLED, LONG, 0.5, 4))
    assert 4 <= len(tokens) < 40
    assert len([up for up, _ in frames if not up]) == LEAST_FRAMES and read < len(frames)


def test_the_place_of_an_answer_that_is_being_filled_up_is_free():
    async def scenario():
        async with serving(limits=SessionLimits(max_sessions=1, max_draft=8)) as (manager, address):
            short = SamplingParams(temperature=0, max_tokens=2)
            filling = asyncio.ensure_future(recorded(address, FILLED, short))
            await until(lambda: any(not each.has_reader for each in manager.remembered))
            async with linked(address) as link:
                await finish(link)
            assert not filling.done(), "it was no longer being filled up"
            await filling

    asyncio.run(scenario())


# -- how both ends agree --------------------------------------------------------------------------------


def requiring(least):
    """A server that requires this shaping."""
    return serving(limits=SessionLimits(max_sessions=3, max_draft=8, shaping=least))


def test_a_server_that_requires_shaping_says_so_and_refuses_others():
    async def scenario():
        async with requiring(TICKED) as (_, address), linked(address) as link:
            info = await link.describe()
            assert info.shaping == TICKED and SHAPING in info.capabilities
            assert shaping_for(None, info) == TICKED
            refused = await first_reply(link, Open(PROMPT, LONG))
            assert isinstance(refused, Failure)
            assert (refused.code, refused.field) == ("invalid_request", "shaping")
            opened = await first_reply(link, Open(PROMPT, LONG, shaping=PADDED))
            assert isinstance(opened, Opened) and opened.shaping == TICKED

    asyncio.run(scenario())


def test_a_device_without_flags_does_what_its_server_requires():
    async def scenario():
        async with requiring(TICKED) as (manager, address), device_on(address) as device:
            chunks = await read(device)
            assert [id for chunk in chunks for id in chunk.token_ids] == continuation(PROMPT, 20)
            assert not manager.stats.refused

    asyncio.run(scenario())


def test_a_device_closes_when_its_last_answer_is_filled_up():
    async def scenario():
        started = asyncio.get_running_loop().time()
        async with requiring(FILLED) as (_, address):
            async with device_on(address) as device:
                await read(device)
                assert asyncio.get_running_loop().time() - started < 0.6
            assert asyncio.get_running_loop().time() - started > LEAST_FRAMES * 0.01 - 0.02

    asyncio.run(scenario())


def test_a_device_is_told_of_a_server_that_cannot_shape():
    async def scenario():
        async with requiring(None) as (_, address), linked(address) as link:
            info = await link.describe()
            assert shaping_for(None, info) is None and shaping_for(FILLED, info) == FILLED
            with pytest.raises(Unsupported, match="cannot pad frames"):
                shaping_for(PADDED, replace(info, capabilities=()))

    asyncio.run(scenario())


def test_a_server_that_ignores_the_wish_is_found_out():
    """A server of an older version answers without it."""

    class Deaf:
        async def send(self, message):
            self.asked = message

        async def receive(self):
            return Opened((1,), bytes(16), b"", codec.Limits(4, 9))

    async def scenario():
        stream = ShapedStream(Deaf(), PADDED, lambda rest: None)
        await stream.send(Open(PROMPT))
        with pytest.raises(Unsupported, match="does not shape"):
            await stream.receive()

    asyncio.run(scenario())


def test_a_stream_without_a_tick_takes_no_dummies():
    async def scenario():
        async with requiring(None) as (_, address), linked(address) as link:
            reply = await first_reply(link, Open(PROMPT, LONG, shaping=PADDED), codec.Dummy())
            assert isinstance(reply, Failure) and isinstance(reply.error(), InvalidRequest)

    asyncio.run(scenario())


def test_dummies_are_read_no_faster_than_the_tick():
    async def scenario():
        loop, frames = asyncio.get_running_loop(), 40

        async def receive():
            return Dummy()

        start = loop.time()
        paced = _at_most(receive, 0.001, start)
        for _ in range(BURST + frames):
            await paced()
        assert loop.time() - start >= frames * 0.001

    asyncio.run(scenario())
