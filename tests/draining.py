"""A server that stands still in mid-answer, and what its clients see when it ends."""

import contextlib

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edge_client.link.remote import RemoteSession
from opensled.core.errors import Overloaded
from opensled.core.messages import Failure, Open, Opened, SamplingParams, Verdict
from tests.gated_target import STOP_AT

PROMPT = (3, 1, 4)
PARAMS = SamplingParams(temperature=0, max_tokens=100)


# Without drafts: a step over a draft would reach the gate before its first tokens are told
SERVE = ("serve", "--engine", "tests.gated_target:load", "--server-drafter=none", "--listen", "127.0.0.1:0")
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def hanging(link):
    """A stream whose answer has come as far as the gate, and its tokens."""
    stream = link.connect()
    await stream.send(Open(PROMPT, PARAMS))
    assert isinstance(await stream.receive(), Opened)
    tokens = []
    while len(PROMPT) + len(tokens) < STOP_AT:
        tokens += (await stream.receive()).tokens
    return stream, tokens


async def rest(stream):
    """Its tokens to the end, or the Failure it ends by."""
    tokens = []
    while True:
        message = await stream.receive()
        if isinstance(message, Failure):
            return message
        assert isinstance(message, Verdict)
        tokens += message.tokens
        if message.finish_reason:
            await stream.close()
            return tokens


async def refused(link):
    """Why a device, which tries for a while, gets no answer."""
    with pytest.raises(Overloaded) as caught:
        await RemoteSession(link.connect, Open(PROMPT, PARAMS)).open()
    return caught.value


async def until_not_serving(address):
    """As those who place sequences hear it. They ask again when the port is closed and opened anew under them."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub, status = health_pb2_grpc.HealthStub(channel), None
        while status is not NOT_SERVING:
            with contextlib.suppress(grpc.aio.AioRpcError):
                reply = await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
                status = reply.status


@pytest.fixture
def gate(tmp_path):
    """The file whose existence lets answers go on that hang at position STOP_AT."""
    return tmp_path / "gate"
