"""A server that talks nonsense: the device says so in errors of ours, and never runs into one of Python's."""

import asyncio
import math
import socket
import time
from contextlib import asynccontextmanager, contextmanager

import grpc
import pytest
from starlette.requests import Request

from edge_client.link.link import Endpoint, Link
from edge_client.link.link_errors import explain
from edge_client.link.remote import RemoteSession, RetryPolicy
from http_api.failures import error_object, error_response
from opensled.core.errors import Overloaded, ProtocolError, Unreachable
from opensled.core.messages import Cancel, Open
from opensled.v1 import verify_pb2 as pb
from opensled.wire import codec
from tests.loops import cancelled
from tests.serving import PROMPT, handling, linked, serving

NAN = float("nan")


@asynccontextmanager
async def saying(payload: bytes):
    """A server that answers everything with these bytes; yields its address."""

    async def sequence(requests, context):
        await context.read()
        await context.write(payload)

    async def unary(request, context):
        return payload

    unaries = dict.fromkeys(("Describe", "GetTokenizer"), grpc.unary_unary_rpc_method_handler(unary))
    async with handling(sequence, **unaries) as address:
        yield address


async def test_bytes_that_are_no_message_are_the_servers_error():
    async with saying(b"\xff\xff") as address, linked(address) as link:
        stream = link.connect()
        await stream.send(Open((1,)))
        for asking in (stream.receive(), link.describe(), link.tokenizer_json()):
            with pytest.raises(ProtocolError, match="does not speak the OpenSLED protocol"):
                await asking
        await stream.close()


async def test_a_stream_that_is_closed_leaves_no_write_behind():
    """The end of the loop would meet it, and log a failure of this device for each client that has left."""
    async with linked("192.0.2.1:7411") as link:
        stream = link.connect()
        sending = asyncio.ensure_future(stream.send(Open((1,))))
        await asyncio.sleep(0)
        await cancelled(sending)
        before = asyncio.all_tasks()
        await stream.close()
        assert not [task for task in before if "GrpcStream._write" in repr(task) and not task.done()]


def opened(**fields) -> pb.ServerMessage:
    return pb.ServerMessage(opened=pb.Opened(**fields))


def verdict(*entries: pb.Logprobs, **fields) -> pb.ServerMessage:
    return pb.ServerMessage(verdict=pb.Verdict(tokens=[1], logprobs=entries, **fields))


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (pb.ServerMessage(), "of a kind"),
        (opened(), "noise_key"),
        (opened(noise_key=b"short"), "noise_key"),
        (verdict(pb.Logprobs()), "log-probabilities"),
        (verdict(pb.Logprobs(ids=[1])), "log-probabilities"),
        (verdict(pb.Logprobs(ids=[1] * 22, logprobs=[-1] * 22)), "log-probabilities"),
        (verdict(pb.Logprobs(ids=[1], logprobs=[NAN])), "log-probability is not a number"),
        (verdict(*[pb.Logprobs(ids=[1], logprobs=[-1])] * 2), "more log-probabilities than tokens"),
        (verdict(finish_reason="whim"), "not a finish reason"),
        (opened(resume_token=b"r" * 70_000), "more than a server"),
        (opened(rule="r" * 70_000, prompt_ids=range(100)), "more than a server"),
        (opened(coarse_tools=["t"] * 40_000), "more than a server"),
        (pb.ServerMessage(moved=pb.Moved(resume_token=b"r" * 70_000)), "more than a server"),
    ],
)
def test_what_a_server_gets_wrong_is_not_the_users_error(message, cause):
    with pytest.raises(ProtocolError, match=cause):
        codec.decode_server(message)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_id": "m" * 70_000},
        {"aliases": ["m"] * 40_000},
        {"eos_ids": range(40_000)},
        {"rules": [pb.RuleFacts(name="match")] * 10_000},
        {"thoughts": pb.ThoughtTags(start="s" * 70_000, end="e")},
    ],
)
def test_a_description_without_end_is_not_read(fields):
    with pytest.raises(ProtocolError, match="more than a server"):
        codec.decode_info(pb.DescribeReply(**fields))


def test_an_error_of_a_server_is_shown_as_far_as_a_person_reads():
    failure = pb.Failure(code="invalid_request", reason="r" * 70_000, field="f" * 70_000)
    error = codec.decode_server(pb.ServerMessage(failure=failure)).error()
    assert len(str(error)) == 4096 and len(error.field) == 1024


@pytest.mark.parametrize("seconds", [NAN, math.inf, -1.0])
def test_a_retry_after_that_is_no_time_counts_as_unknown(seconds):
    message = pb.ServerMessage(failure=pb.Failure(code="overloaded", reason="full", retry_after=seconds))
    error = codec.decode_server(message).error()
    assert isinstance(error, Overloaded) and error.retry_after == 0
    assert (
        asyncio.run(
            error_response(Request({"type": "http", "path": "/v1/models", "headers": []}), error)
        ).headers["Retry-After"]
        == "1"
    )
    assert error_object(error)["error"]["code"] == "overloaded"


def test_a_write_that_meets_the_end_of_a_stream_finds_it_lost():
    """gRPC then invents the status INTERNAL; a sequence is reopened only after Unreachable."""
    error = explain(grpc.StatusCode.INTERNAL, "Internal error from Core", "hub:1", tls=False)
    assert isinstance(error, Unreachable) and "ended the stream" in str(error)


# -- a server that is not there -----------------------------------------------------------------------------------


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
async def test_a_new_request_is_told_soon(dead):
    with dead() as address:
        async with linked(address) as link:
            session = RemoteSession(link.connect, Open(PROMPT))
            started = time.monotonic()
            with pytest.raises(Unreachable, match="no server answers"):
                await session.open()
            assert time.monotonic() - started < PROMISED


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
