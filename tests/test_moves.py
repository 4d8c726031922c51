"""Answers that outlive the replica and the gateway they began on: real edges, real gRPC, the target's own text."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from edge_client.link.link import Endpoint, GrpcStream
from opensled.core.answer import Task
from opensled.core.errors import Unreachable
from opensled.core.messages import Draft, DraftBlock, DraftToken, Moved, Open, Opened, SamplingParams
from tests.devices import device_on
from tests.fakes import FakeEngine, continuation
from tests.replicas import cluster
from tests.system import running, until

USERS = 16
LONG = SamplingParams(temperature=0, max_tokens=120)
BOTH = pytest.mark.parametrize("proxy", [False, True], ids=["direct", "proxy"])


def prompt_of(user):
    return (3, 1, 4, 1 + user)


class Reader:
    """A user on a device of his own, who stops reading in mid-answer until he is told to go on."""

    def __init__(self, device, user):
        self.device, self.user = device, user
        self.tokens, self.finish_reason = [], ""
        self.paused, self.going_on = asyncio.Event(), asyncio.Event()

    async def read(self):
        async for chunk in self.device.answer(Task(prompt_of(self.user), LONG)):
            self.tokens += chunk.token_ids
            self.finish_reason = chunk.finish_reason or ""
            if len(self.tokens) >= 20 and not self.paused.is_set():
                self.paused.set()
                await self.going_on.wait()

    @property
    def is_right(self):
        return self.finish_reason == "length" and self.tokens == continuation(prompt_of(self.user), 120)


@asynccontextmanager
async def readers_on(address):
    """So many users in mid-answer; at the end every one of them has the whole answer, as the target writes it."""
    async with AsyncExitStack() as stack:
        devices = [await stack.enter_async_context(device_on(address)) for _ in range(USERS)]
        readers = [Reader(device, user) for user, device in enumerate(devices)]
        reading = [asyncio.ensure_future(reader.read()) for reader in readers]
        await asyncio.wait_for(asyncio.gather(*(reader.paused.wait() for reader in readers)), 60)
        yield readers
        for reader in readers:
            reader.going_on.set()
        await asyncio.wait_for(asyncio.gather(*reading), 120)
        assert [reader.is_right for reader in readers] == [True] * USERS


@BOTH
async def test_a_replica_dies_under_sixteen_answers(proxy):
    async with cluster("a", "b", proxy=proxy) as one, readers_on(one.address):
        held = {replica.name: len(replica.manager.remembered) for replica in one.members}
        assert held["a"] and held["b"] and sum(held.values()) == USERS
        await one["a"].stop()
        one.members.remove(one["a"])
    assert one["b"].manager.stats.opened["new"] == USERS


@BOTH
async def test_both_replicas_are_replaced_one_after_another_under_load(proxy):
    async with cluster("a", "b", proxy=proxy) as one, readers_on(one.address) as readers:
        for name in ("a", "b"):
            old = one[name]
            draining = asyncio.ensure_future(old.drain())
            if name == "b":
                for reader in readers:  # the second one has to let readers go who are reading
                    reader.going_on.set()
            await draining
            # gRPC may call a stream ended whose handler has a turn of the event loop to go.
            await until(lambda manager=old.manager: not manager.remembered)
            one.members.remove(old)
            await one.add(f"{name}2")
            await one.all_seen()


@BOTH
async def test_the_gateway_is_restarted_under_load(proxy):
    async with cluster("a", "b", proxy=proxy) as one, readers_on(one.address):
        held = {session for replica in one.members for session in replica.manager.remembered}
        await one.restart_gateway()
        if not proxy:  # nobody who streams has noticed
            assert {s for replica in one.members for s in replica.manager.remembered if s.has_reader} == held


class CountingConnect:
    """A device's way to connect, which notes what it sends and hears before it goes on."""

    def __init__(self, connect):
        self._connect, self.log = connect, []

    def __call__(self, address=""):
        self.log.append("connect")
        return CountingStream(self._connect(address), self.log)


class CountingStream:
    def __init__(self, stream, log):
        self._stream, self._log = stream, log
        self.close = stream.close

    async def send(self, message):
        self._log.append(type(message).__name__)
        await self._stream.send(message)

    async def receive(self):
        message = await self._stream.receive()
        self._log.append(type(message).__name__)
        return message


@BOTH
@pytest.mark.parametrize("drained", [False, True], ids=["killed", "drained"])
async def test_a_device_whose_replica_is_lost_goes_on_after_two_round_trips(proxy, drained):
    """To the gateway and to the replica it names; through a proxy, after one."""
    async with cluster("a", proxy=proxy) as one, device_on(one.address) as device:
        counted = device._link.connect = CountingConnect(device._link.connect)
        reader = Reader(device, 0)
        reading = asyncio.ensure_future(reader.read())
        await reader.paused.wait()
        await one.add("b")
        await one.all_seen()
        await (one["a"].drain() if drained else one["a"].stop())
        await until(lambda: one.seen == {"b"})
        counted.log.clear()
        reader.going_on.set()
        await reading
        assert reader.is_right
        begin = counted.log.index("connect")
        answer = counted.log.index("Opened", begin)
        moves = [] if proxy else ["connect", "Open", "Moved"]
        trips = [*moves, "connect", "Open", "Opened"]
        assert [word for word in counted.log[begin : answer + 1] if word != "Draft"] == trips


class StuckCall:
    """A gRPC call whose write does not come to its end; cancelling the call cancels the write, as gRPC does it."""

    def __init__(self):
        self.writing, self._cancelled = asyncio.Event(), asyncio.Event()

    async def wait_for_connection(self):
        pass

    async def write(self, message):
        self.writing.set()
        await self._cancelled.wait()
        raise asyncio.CancelledError

    def cancel(self):
        self._cancelled.set()


async def test_a_draft_on_its_way_when_the_device_is_sent_elsewhere_is_lost_and_nothing_else():
    call = StuckCall()
    stream = GrpcStream(call, Endpoint("a:1"))
    sending = asyncio.ensure_future(stream.send(Draft(1, DraftBlock(3))))
    await call.writing.wait()
    await stream.close()
    with pytest.raises(Unreachable):
        await sending


async def test_a_reader_is_sent_elsewhere_between_two_commits():
    """What a step was computing for him goes out first, and nothing is computed for him afterwards."""
    async with running(FakeEngine()) as network:
        session, _ = await network.manager.open(Open((3, 1, 4), LONG), "local")
        outbox = network.manager.loop.attach(session, 3)
        await until(lambda: session.in_step)
        network.manager.hand_over()
        assert session.in_step and session.has_reader
        tokens = [3, 1, 4]
        while not isinstance(message := await outbox.get(), Moved):
            tokens += message.tokens
        assert tokens == session.sequence.tokens and len(tokens) > 3 and not session.has_reader
        held = len(session.sequence.tokens)
        network.manager.loop.submit(session, Draft(1, DraftBlock(held, (DraftToken(1),))))
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(session.sequence.tokens) == held
        network.manager.forget(session)


async def test_a_drained_server_keeps_no_session_without_a_reader():
    async with running(FakeEngine()) as network:
        stream = network.connect()
        await stream.send(Open((3, 1, 4), LONG))
        assert isinstance(await stream.receive(), Opened)
        (session,) = network.manager.remembered
        network.manager.leave(session)
        network.manager.hand_over()
        assert not network.manager.remembered and not network.manager.loop.machine.sessions
