"""A server that is not there: a new request hears of it within three seconds, whatever the silence is like."""

import asyncio
import socket
import time
from contextlib import contextmanager

import pytest

from edge_client.link.link import Endpoint, Link
from edge_client.link.remote import RemoteSession, RetryPolicy
from opensled.core.errors import Unreachable
from opensled.core.messages import Cancel, Open
from tests.serving import PROMPT, linked, serving

PROMISED = 3.0  # seconds


@contextmanager
def refusing():
    """A port that nobody listens on, so that connections are refused."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    yield f"127.0.0.1:{port}"


@contextmanager
def silent():
    """Connections are taken, and not a byte comes back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.timed
@pytest.mark.parametrize("dead", [refusing, silent], ids=lambda kind: kind.__name__)
def test_a_new_request_is_told_soon(dead):
    async def scenario(address):
        async with linked(address) as link:
            session = RemoteSession(link.connect, Open(PROMPT))
            started = time.monotonic()
            with pytest.raises(Unreachable, match="no server answers"):
                await session.open()
            return time.monotonic() - started

    with dead() as address:
        assert asyncio.run(scenario(address)) < PROMISED


def test_what_is_promised_is_what_is_waited_for():
    assert max(RetryPolicy().first_open, Endpoint("a:1").connect) < PROMISED


@pytest.mark.timed
async def test_a_server_that_died_between_two_requests():
    async with serving() as (_, address):
        link = Link(Endpoint(address))
        session = RemoteSession(link.connect, Open(PROMPT))
        await session.open()
        await session.close()
    started = time.monotonic()
    with pytest.raises(Unreachable):
        await RemoteSession(link.connect, Open(PROMPT)).open()
    await link.close()
    assert time.monotonic() - started < PROMISED


async def test_a_write_to_a_stream_that_was_closed_is_a_loss_and_no_cancellation():
    """A cancellation out of `send` would look like the reader's own."""
    async with serving() as (_, address), linked(address) as link:
        stream = link.connect()
        await stream.send(Open(PROMPT))
        await stream.receive()
        await stream.close()
        with pytest.raises(Unreachable):
            await stream.send(Cancel())
