"""Work that nobody waits for any more leaves within one step: past its deadline, cancelled, or its client gone."""

import asyncio
import threading
from contextlib import asynccontextmanager

import grpc
import pytest

from opensled.core.messages import Cancel, Open, Opened, SamplingParams, Verdict
from opensled.v1 import verify_pb2_grpc
from opensled.wire import codec
from tests.fakes import FakeEngine, HeldText
from tests.serving import PROMPT, finish, linked, serving
from tests.system import running, until
from verify_server.admission.session_manager import SessionLimits
from verify_server.front.session_stream import Deadline

LONG = SamplingParams(temperature=0, max_tokens=190)
HUNG = 10.0  # seconds: a test that waits so long has failed


class SteppedEngine(FakeEngine):
    """Each step waits for a permit."""

    def __init__(self):
        super().__init__(num_blocks=100)
        self.permits, self.begun = threading.Semaphore(0), 0

    def forward(self, segments):
        self.begun += 1
        assert self.permits.acquire(timeout=HUNG)
        return super().forward(segments)


@asynccontextmanager
async def stepped():
    """A server that steps when told to; yields (manager, engine, address). At the end it still serves."""
    engine = SteppedEngine()
    async with serving(engine=engine, limits=SessionLimits(max_sessions=3, max_draft=8, linger=60)) as (
        manager,
        address,
    ):
        try:
            yield manager, engine, address
        finally:
            engine.permits.release(1000)
        async with linked(address) as link:
            await finish(link)


async def opened(address, timeout=None):
    """A stream, its channel and its first verdict's call; `timeout`: seconds to its deadline."""
    channel = grpc.aio.insecure_channel(address)
    call = verify_pb2_grpc.VerifyStub(channel).Sequence(timeout=timeout)
    await call.write(codec.encode_client(Open(PROMPT, LONG)))
    assert isinstance(codec.decode_server(await call.read()), Opened)
    return channel, call


async def in_its_second_step(engine, call):
    """One step is done, and the next one begun."""
    engine.permits.release()
    assert isinstance(codec.decode_server(await call.read()), Verdict)
    await until(lambda: engine.begun == 2)


async def no_further_step(manager, engine):
    """The step under way ends, and none comes after it."""
    engine.permits.release()
    await until(lambda: not any(session.in_step for session in manager.loop.machine.sessions.values()))
    await until(lambda: manager.loop.machine.stats.steps == 2)
    assert engine.begun == 2


async def past_its_deadline(call):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def cancelled(call):
    await call.write(codec.encode_client(Cancel()))


@pytest.mark.parametrize(("ended", "timeout"), [(past_its_deadline, 3.0), (cancelled, None)])
async def test_a_session_that_is_ended_leaves_within_one_step(ended, timeout):
    async with stepped() as (manager, engine, address):
        channel, call = await opened(address, timeout=timeout)
        await in_its_second_step(engine, call)
        await ended(call)
        await until(lambda: not manager.loop.machine.sessions and not manager.remembered)
        await no_further_step(manager, engine)
        pool = manager.loop.machine.target.pool
        await until(lambda: pool.num_free == pool.num_blocks)
        await channel.close()


async def test_a_session_whose_client_is_gone_is_remembered_and_computes_nothing():
    async with stepped() as (manager, engine, address):
        channel, call = await opened(address, timeout=60)
        await in_its_second_step(engine, call)
        call.cancel()
        await until(lambda: all(not session.has_reader for session in manager.remembered))
        await no_further_step(manager, engine)
        assert len(manager.remembered) == 1  # its deadline is far: the client may come back
        await channel.close()


async def test_a_deadline_that_passes_while_the_prompt_is_read():
    async with stepped() as (manager, engine, address):
        manager.inputs.text = text = HeldText()
        channel = grpc.aio.insecure_channel(address)
        call = verify_pb2_grpc.VerifyStub(channel).Sequence(timeout=2.0)
        await call.write(codec.encode_client(Open("words", LONG)))
        await until(lambda: text.waiting == 1)
        await until(lambda: not manager._admission.taken)
        assert text.waiting == 1 and not manager.remembered and engine.begun == 0
        text.go.set()
        await channel.close()


async def test_a_deadline_holds_whatever_carries_the_stream():
    """Here nobody but the server itself looks at it: the peer is silent."""
    engine = SteppedEngine()
    async with running(engine, limits=SessionLimits(linger=60)) as network:
        messages, sent = [Open(PROMPT, LONG)], []

        async def receive():
            return messages.pop() if messages else await asyncio.get_running_loop().create_future()

        async def send(message):
            sent.append(message)
            await asyncio.sleep(0)

        with pytest.raises(TimeoutError):
            await network.serve(receive, send, 0.1)
        assert isinstance(sent[0], Opened) and not network.manager.remembered
        engine.permits.release()


async def test_a_deadline_passes_a_little_early():
    """A client's deadline is rounded up on its way: its end must not look like a link that broke."""
    clock = asyncio.get_running_loop().time
    deadline = Deadline(100.0)
    assert not deadline.passed
    deadline.at = clock() + 2.0
    assert deadline.passed
    deadline.at = clock() + 3.0
    assert not deadline.passed
    assert not Deadline(None).passed
