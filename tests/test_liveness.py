"""Nobody waits for ever, nobody keeps what is not his: wake-ups, backpressure, KV under pressure, farewells."""

import asyncio
from contextlib import aclosing

import grpc
import pytest

from edge_client.device.device import Device
from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RemoteSession, RetryPolicy
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from opensled.core.answer import Task
from opensled.core.errors import UsageError
from opensled.core.messages import Draft, DraftBlock, DraftToken, Open, SamplingParams
from tests.devices import TOKENIZER
from tests.fakes import UNLIMITED, FakeEngine, OracleDrafter, continuation
from tests.loops import cancelled
from tests.raw_wire import METHOD
from tests.serving import linked, serving
from tests.system import CALM, ask, running, until
from verify_server.access.client_limits import ClientLimits
from verify_server.admission.session_manager import SessionLimits
from verify_server.front import service
from verify_server.front.session_stream import _read
from verify_server.round.outbox import MAX_UNREAD, Outbox

LONG = SamplingParams(temperature=0, max_tokens=150)
PROMPT = (3, 1, 4)


async def open_stream(network, prompt=PROMPT, params=LONG):
    stream = network.connect()
    await stream.send(Open(tuple(prompt), params))
    return stream, await stream.receive()


async def test_a_slow_reader_is_paused_and_goes_on_when_he_reads_again():
    async with running(FakeEngine()) as network:
        gate = asyncio.Event()
        stream = network.connect()
        deliver = stream.server_send

        async def slow_send(message):
            await gate.wait()
            await deliver(message)

        stream.server_send = slow_send
        stream.task.cancel()
        network.tasks.add(asyncio.ensure_future(network.serve(stream.server_receive, slow_send)))
        await stream.send(Open(PROMPT, LONG))
        await until(lambda: network.manager.loop.machine.sessions and _only(network).outbox.full)
        session = _only(network)
        assert len(session.sequence.tokens) <= len(PROMPT) + MAX_UNREAD + 1
        gate.set()
        await until(lambda: session.sequence.finish_reason)


def _only(network):
    (session,) = network.manager.loop.machine.sessions.values()
    return session


async def test_who_does_not_read_is_not_read():
    """Each stale draft is answered with the whole truth: unread answers must not pile up."""
    async with running(FakeEngine()) as network:
        session, _ = await network.manager.open(Open(PROMPT, LONG), "local")
        outbox = network.manager.loop.attach(session, len(PROMPT))
        await until(lambda: len(session.sequence.tokens) > len(PROMPT))  # from now on the drafts are stale
        taken = 0

        async def receive():
            nonlocal taken
            taken += 1
            await asyncio.sleep(0)
            return Draft(taken, DraftBlock(3, (DraftToken(48), DraftToken(48))))

        reading = asyncio.ensure_future(
            _read(network.manager.loop, session, receive, Open((1,)), UNLIMITED.idle)
        )
        await until(lambda: outbox.full)
        await asyncio.sleep(0.02)
        assert taken <= MAX_UNREAD + 2
        reading.cancel()


async def test_a_device_too_busy_for_its_first_message_opens_again():
    """The server does not know why no message comes, and gives the place to others."""
    limits = ClientLimits(first_s=0.05)
    async with serving(client_limits=limits) as (manager, address), linked(address) as link:

        def connect(address=""):
            stream = link.connect(address)
            if not manager.stats.refused["unreachable"]:
                stream.send = starved(stream.send)
            return stream

        def starved(send):
            async def sending(message):
                await until(lambda: manager.stats.refused["unreachable"])
                await send(message)

            return sending

        session = RemoteSession(connect, Open(PROMPT, LONG), CALM)
        await session.open()
        assert manager.stats.refused == {"unreachable": 1} and len(manager.remembered) == 1
        await session.close()


async def test_a_cancelled_reader_says_goodbye():
    """Cancelled while a verdict is awaited, over real gRPC: the server must not keep the session for its linger."""
    params = SamplingParams(temperature=0, max_tokens=4000)  # never finished before the cancel
    engine = FakeEngine(num_blocks=1100, context_length=4100)
    limits = SessionLimits(linger=60)
    async with serving(limits=limits, engine=engine) as (manager, address), linked(address) as link:
        session = RemoteSession(link.connect, Open(PROMPT, params), CALM)
        await session.open()
        thread = DraftThread(OracleDrafter(0.5), FixedLength(4))

        async def read():
            async with aclosing(generate(session, thread, params)) as commits:
                async for _ in commits:
                    pass

        task = asyncio.ensure_future(read())
        await until(lambda: len(session.truth) > len(PROMPT))
        await cancelled(task)
        await until(lambda: not manager.remembered)
        thread.close()


async def test_an_idle_session_gives_its_kv_to_one_with_work_and_gets_its_text_all_the_same():
    async with running(FakeEngine(num_blocks=17), limits=SessionLimits(max_draft=8, linger=60)) as network:
        # With the other's 43 tokens more than the 68 there is room for
        prompt = [1 + i % 40 for i in range(30)]
        stream, _ = await open_stream(network, prompt, SamplingParams(temperature=0, max_tokens=25))
        # From now on the server waits for it
        await stream.send(Draft(1, DraftBlock(30, (DraftToken(48),))))
        await until(
            lambda: not _only(network).sources.device.turn.server_drives and not _only(network).in_step
        )
        idle = _only(network).sequence
        answer = await asyncio.wait_for(ask(network, [7, 2, 3], OracleDrafter(0.8)), 20)
        assert answer.tokens == tuple(continuation([7, 2, 3], 40))
        counter = 1
        while not idle.finish_reason:
            counter += 1
            await stream.send(Draft(counter, DraftBlock(len(idle.tokens), (DraftToken(48),))))
            held = len(idle.tokens)
            await until(lambda held=held: len(idle.tokens) > held)
        assert idle.tokens[30:] == continuation(prompt, 25)


async def test_a_prompt_is_not_read_for_someone_who_left():
    engine = FakeEngine()
    async with running(engine, max_step_tokens=4, limits=SessionLimits(linger=60)) as network:
        stream, _ = await open_stream(network, [1 + i % 40 for i in range(180)], SamplingParams(max_tokens=5))
        await stream.close()
        await stream.task
        (session,) = network.manager.remembered
        await until(lambda: not session.in_step)
        computed = engine.computed
        await asyncio.sleep(0.03)
        assert engine.computed == computed < 180


async def test_a_resumed_session_is_not_forgotten_under_its_reader():
    async with running(FakeEngine(), limits=SessionLimits(linger=0.5)) as network:
        stream, opened = await open_stream(network)
        await stream.send(Draft(1, DraftBlock(3, (DraftToken(48),))))
        await until(lambda: not _only(network).sources.device.turn.server_drives)
        await stream.close()
        await stream.task
        again = network.connect()
        await again.send(Open(PROMPT, LONG, resume_token=opened.resume_token))
        await again.receive()
        await again.send(Draft(1, DraftBlock(3, (DraftToken(48),))))
        await asyncio.sleep(0.7)
        assert len(network.manager.remembered) == 1


async def test_kv_memory_smaller_than_a_draft_is_refused_at_the_start():
    with pytest.raises(UsageError, match="--kv-tokens"):
        async with running(FakeEngine(num_blocks=2), limits=SessionLimits(max_draft=16)):
            pass


async def test_a_drafter_that_cannot_be_made_costs_drafts_and_nothing_else():
    class Broken:
        name = "broken"
        tries = 0

        def create(self):
            self.tries += 1
            if self.tries == 1:
                raise RuntimeError("out of memory")
            return NoneDrafter()

    async with serving() as (_, address), linked(address) as link:
        device = Device(link, await link.describe(), TOKENIZER, Broken(), FixedLength(4))
        for _ in range(2):
            chunks = [
                chunk
                async for chunk in device.answer(Task(PROMPT, SamplingParams(temperature=0, max_tokens=9)))
            ]
            assert [id for c in chunks for id in c.token_ids] == continuation(PROMPT, 9)
        assert device._factory.tries == 2
        await device.close()


async def test_a_server_that_takes_less_after_a_restart_gets_shorter_drafts():
    limits = SessionLimits(max_draft=8, linger=0.1)
    async with running(FakeEngine(), limits=limits) as first:
        session = RemoteSession(first.connect, Open(PROMPT, LONG), RetryPolicy(silence=5, first_retry=0.001))
        await session.open()
        thread = DraftThread(OracleDrafter(1.0), FixedLength(8))
        async with running(FakeEngine(), limits=SessionLimits(max_draft=2, linger=0.1)) as second:
            tokens: list[int] = []
            async for commit in generate(session, thread, LONG):
                tokens += commit.tokens
                if session._connect == first.connect and len(tokens) > 20:
                    session._connect = second.connect
                    await first.close()
            assert tokens == continuation(PROMPT, 150) and session.limits.max_draft == 2
        thread.close()


async def test_drafts_that_are_on_their_way_in_share_a_step():
    """Each hop to the engine's thread costs as much as a few rounds: nobody hops alone who could come along."""
    async with running(FakeEngine(num_blocks=100), limits=SessionLimits(max_draft=8)) as network:
        loop = network.manager.loop
        sessions = []
        for _ in range(4):
            session, _ = await network.manager.open(Open(PROMPT, LONG), "local")
            loop.attach(session, len(PROMPT))
            loop.submit(session, Draft(1, DraftBlock(len(PROMPT))))  # the server drives
            loop.submit(session, Draft(2, DraftBlock(len(PROMPT), (DraftToken(48),))))  # now the device does
            sessions.append(session)
        await until(lambda: all(session.awaits_draft and not session.in_step for session in sessions))
        steps, served = loop.machine.stats.steps, loop.machine.stats.sessions
        for session in sessions:  # one in each turn of the event loop
            loop.submit(session, Draft(3, DraftBlock(len(session.sequence.tokens), (DraftToken(48),))))
            await asyncio.sleep(0)
        await until(lambda: loop.machine.stats.sessions == served + len(sessions))
        assert loop.machine.stats.steps == steps + 1


def test_nothing_is_kept_for_a_reader_who_has_read_the_end():
    outbox = Outbox()
    outbox.put(None)
    outbox.close()
    outbox.put(None)
    assert not len(outbox) and not outbox.full


async def test_a_write_to_a_call_that_its_peer_has_ended_leaves_no_traceback(caplog):
    async def sequence(requests, context):
        raise grpc.aio.InternalError("the write failed")  # as gRPC does, until it has told of the end

    server = grpc.aio.server()
    service.take_calls(server, None, None, sequence, None)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert await channel.stream_stream(METHOD)().code() is grpc.StatusCode.UNKNOWN
    await server.stop(None)
    assert not caplog.records
