"""The link under bad conditions: gRPC options that exist, slow networks."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from grpc._cython import cygrpc

from edge_client.lengths.fixed import FixedLength
from edge_client.link import link as edge_link
from edge_client.link.remote import RemoteSession
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from opensled.core.errors import Unreachable
from opensled.core.messages import Draft, DraftBlock, DraftToken, Open
from tests.fakes import OracleDrafter, continuation
from tests.loops import cancelled
from tests.serving import GREEDY, PROMPT, finish, linked, serving
from verify_server.access.client_limits import ClientLimits
from verify_server.front import service
from verify_server.front.session_stream import CLOSE_SECONDS

SERVED = service.options(ClientLimits())


@pytest.mark.parametrize("name", sorted({name for name, _ in edge_link._OPTIONS + SERVED}))
def test_every_grpc_option_is_one_that_grpc_knows(name):
    """gRPC ignores a misspelled option in silence."""
    assert name.encode() in Path(cygrpc.__file__).read_bytes()


@asynccontextmanager
async def slow_road(address, delay):
    """A TCP proxy that holds everything back for `delay` seconds each way; yields its address."""
    host, port = address.rsplit(":", 1)
    pumps = []

    async def pump(reader, writer):
        while data := await reader.read(65536):
            asyncio.get_running_loop().call_later(delay, writer.write, data)
        asyncio.get_running_loop().call_later(delay, writer.close)

    async def accept(reader, writer):
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        pumps.extend(map(asyncio.ensure_future, (pump(reader, far_writer), pump(far_reader, writer))))

    proxy = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    finally:
        proxy.close()
        await cancelled(*pumps)


async def test_a_link_of_half_a_second_works():
    async with serving() as (_, address), slow_road(address, 0.25) as road, linked(road) as link:
        started = time.monotonic()
        _, tokens = await finish(link)
        assert tokens == continuation(PROMPT, 20)
        assert time.monotonic() - started > 0.5  # it was really slow


async def _finished(manager, link):
    """A stream whose sequence has ended on the server; its device has read nothing but the first message."""
    stream = link.connect()
    await stream.send(Open(PROMPT, GREEDY))
    await stream.receive()
    while manager.loop.machine.sessions:
        await asyncio.sleep(0.001)
    return stream


async def _read_to_the_end(stream):
    verdict = await stream.receive()
    while not verdict.finish_reason:
        verdict = await stream.receive()
    return verdict


LATE = Draft(1, DraftBlock(len(PROMPT), (DraftToken(5),)))


@pytest.mark.timed
async def test_a_draft_that_comes_after_the_end_costs_no_verdict():
    """A quick server finishes while the device still drafts: the stream stays open until the device has read all."""
    async with serving() as (manager, address), linked(address) as link:
        stream = await _finished(manager, link)
        for counter in range(1, 20):
            await stream.send(replace(LATE, counter=counter))
        verdict = await _read_to_the_end(stream)
        assert verdict.base + len(verdict.tokens) == len(PROMPT) + GREEDY.max_tokens
        # Nothing is held for it
        assert manager.loop.machine.target.pool.num_free == manager.loop.machine.target.pool.num_blocks
        started = time.monotonic()
        await stream.close(5.0)
        assert time.monotonic() - started < CLOSE_SECONDS / 2  # who says that nothing follows does not wait


@pytest.mark.timed
async def test_a_peer_who_never_ends_a_finished_stream_does_not_keep_it():
    async with serving() as (manager, address), linked(address) as link:
        stream = await _finished(manager, link)
        await _read_to_the_end(stream)
        with pytest.raises(Unreachable, match="ended the stream"):
            await asyncio.wait_for(stream.receive(), 3 * CLOSE_SECONDS)


async def test_many_short_answers_lose_no_stream():
    async with serving() as (_, address), linked(address) as link:
        thread = DraftThread(OracleDrafter(0.8), FixedLength(4))
        for _ in range(50):
            session = RemoteSession(link.connect, Open(PROMPT, GREEDY))
            await session.open()
            async for _ in generate(session, thread, GREEDY):
                pass
            assert session.reopened == 0
            assert session.truth.generated == tuple(continuation(PROMPT, GREEDY.max_tokens))
        thread.close()


class EndingCall:
    """A call whose end comes when the test says so."""

    def __init__(self):
        self.ended = asyncio.Event()

    def done(self):
        return False

    def cancel(self):
        pass

    async def done_writing(self):
        pass

    async def code(self):
        await self.ended.wait()


async def test_a_cancel_that_comes_with_the_end_of_the_call_is_not_swallowed():
    call = EndingCall()
    closing = asyncio.ensure_future(edge_link.GrpcStream(call, edge_link.Endpoint("server")).close(60))
    for _ in range(5):
        await asyncio.sleep(0)
    call.ended.set()
    await asyncio.sleep(0)  # the farewell is over, and whoever waits for it not yet awake
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
