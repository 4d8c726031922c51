"""SIGTERM: not ready first, newcomers are told to come back, answers under way are finished, then the end."""

import asyncio
import signal

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from opensled.messages import Failure, Open, Opened, SamplingParams, Verdict
from opensled_testbed.processes import Process
from tests.fake_target import cycle
from tests.gated_target import GATE, STOP_AT
from tests.serving import first_reply, linked
from tests.stuck_target import ENTERED
from tests.system import until
from verify_server.command import EXIT_SECONDS

PROMPT = (3, 1, 4)
PARAMS = SamplingParams(temperature=0, max_tokens=100)
# Without drafts: a step over a draft would reach the gate before its first tokens are told
SERVE = ("serve", "--engine", "tests.gated_target:load", "--drafter", "none", "--listen", "127.0.0.1:0")
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def gate(tmp_path):
    """The file whose existence lets answers go on that hang at position STOP_AT."""
    return tmp_path / "gate"


@pytest.fixture
def server(gate):
    with Process(SERVE, isolated=True, environment={GATE: str(gate)}) as process:
        process.wait_ready()
        yield process


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


async def asked_to_end(server):
    """SIGTERM, and until it tells so."""
    server.process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(until_not_serving(server.address), 20)


async def until_not_serving(address):
    """As those who place sequences hear it."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        while (await call.read()).status is not NOT_SERVING:
            pass
        call.cancel()


def test_sigterm_finishes_what_is_under_way_and_sends_newcomers_away(server, gate):
    async def scenario():
        async with linked(server.address) as link:
            stream, tokens = await hanging(link)
            await asked_to_end(server)
            refusal = await first_reply(link, Open(PROMPT, PARAMS))
            assert refusal.code == "overloaded" and "shutting down" in refusal.reason
            assert refusal.retry_after > 0
            gate.touch()
            tokens += await rest(stream)
        expected = list(PROMPT)
        while len(expected) < len(PROMPT) + PARAMS.max_tokens:
            expected.append(cycle(expected))
        assert tokens == expected[len(PROMPT) :]
        await until(lambda: server.process.poll() is not None, 20)
        assert server.process.returncode == 0

    asyncio.run(scenario())


def test_a_lost_reader_may_come_back_while_the_server_drains(server, gate):
    async def scenario():
        async with linked(server.address) as link:
            first, _ = await hanging(link)
            second = link.connect()
            await second.send(Open(PROMPT, PARAMS))
            opened = await second.receive()
            await asked_to_end(server)
            await second.close()
            again = link.connect()
            await again.send(Open(PROMPT, PARAMS, resume_token=opened.resume_token))
            assert isinstance(await again.receive(), Opened)
            gate.touch()
            assert len(await rest(again)) == PARAMS.max_tokens
            assert len(await rest(first)) == PARAMS.max_tokens - (STOP_AT - len(PROMPT))

    asyncio.run(scenario())


def test_a_second_sigterm_ends_at_once(server, gate):
    async def scenario():
        async with linked(server.address) as link:
            await hanging(link)
            await asked_to_end(server)
            server.process.send_signal(signal.SIGTERM)
            gate.touch()  # a step under way is not interrupted
            await until(lambda: server.process.poll() is not None, 20)

    asyncio.run(scenario())


def test_an_idle_server_is_gone_at_once(server):
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0


def test_a_step_that_never_ends_does_not_hold_up_the_end(server):
    async def scenario():
        async with linked(server.address) as link:
            await hanging(link)
            await asked_to_end(server)
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: server.process.poll() is not None, EXIT_SECONDS + 10)
        assert server.process.returncode == 0

    asyncio.run(scenario())


def test_a_tokenizer_that_never_ends_does_not_hold_up_the_end(tmp_path):
    entered = tmp_path / "entered"
    arguments = ("serve", "--engine", "tests.stuck_target:load", "--listen", "127.0.0.1:0")

    async def scenario(process):
        async with linked(process.address) as link:
            stream = link.connect()
            await stream.send(Open("some text", PARAMS))
            await until(entered.exists)
            await asked_to_end(process)
            process.process.send_signal(signal.SIGTERM)
            await until(lambda: process.process.poll() is not None, EXIT_SECONDS + 10)
        assert process.process.returncode == 0

    with Process(arguments, isolated=True, environment={ENTERED: str(entered)}) as process:
        process.wait_ready()
        asyncio.run(scenario(process))
