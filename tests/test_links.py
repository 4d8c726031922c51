"""The link under bad conditions: gRPC options that exist, slow networks."""

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpc._cython import cygrpc

from edge_client import link as edge_link
from opensled.errors import Unreachable
from opensled.messages import Draft, DraftBlock, DraftToken, Open
from tests.fakes import continuation
from tests.serving import GREEDY, PROMPT, finish, linked, serving
from verify_server import service


@pytest.mark.parametrize("name", sorted({name for name, _ in edge_link._OPTIONS + service._OPTIONS}))
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
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def test_a_link_of_half_a_second_works():
    async def scenario():
        async with serving() as (_, address), slow_road(address, 0.25) as road, linked(road) as link:
            started = time.monotonic()
            _, tokens = await finish(link)
            assert tokens == continuation(PROMPT, 20)
            assert time.monotonic() - started > 0.5  # it was really slow

    asyncio.run(scenario())


def test_a_draft_that_comes_after_the_end_only_loses_the_stream():
    """A quick server finishes while the device still drafts; reopening then brings what was not read."""

    async def scenario():
        async with serving() as (door, address), linked(address) as link:
            stream = link.connect()
            await stream.send(Open(PROMPT, GREEDY))
            await stream.receive()
            while door.loop.sessions:
                await asyncio.sleep(0.001)
            with pytest.raises(Unreachable):
                while True:  # until the news has travelled: nothing more is read
                    await stream.send(Draft(1, DraftBlock(len(PROMPT), (DraftToken(5),))))
            with pytest.raises(Unreachable):
                await stream.receive()

    asyncio.run(scenario())
