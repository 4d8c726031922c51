"""Devices and servers over a network that Hypothesis moves by hand; the static policy in it."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge_client.link.remote import RemoteSession, RetryPolicy
from hw_profiles.step_cost import HardwareProfile
from opensled.core.messages import Draft, DraftBlock, DraftToken, Open, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.turns import hear
from opensled.models.store import model_path
from scheduler.fcfs import Fcfs
from scheduler.plan import SchedulingPolicy
from scheduler.static import Static
from tests.by_hand import HandLoop, Server, Wire
from tests.fakes import UNLIMITED, FakeEngine, FakeText, OracleDrafter, continuation
from tests.hypothesis_profiles import bounded
from tests.mischief import Whims, goodput
from tests.rounds import looping
from tests.system import ask, running
from verify_server.admission.session_manager import SessionLimits, SessionManager
from verify_server.engine.base import SampleRequest, Segment, TargetEngine
from verify_server.front.session_stream import serve_stream
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel

PROMPTS, LENGTH = ((3, 1, 4), (2, 7, 1, 8, 2)), 30
PATIENCE = RetryPolicy(silence=5.0, first_retry=0.1, slowest_retry=1.0, first_open=1e6, give_up=1e6)
DRAFT_WAIT, LINGER = 3.0, 20.0  # seconds


class Device:
    """Reads one sequence to its end; drafts when told to."""

    def __init__(self, machine: Protocol, prompt: tuple[int, ...]) -> None:
        self.prompt, self.counter = prompt, 0
        params = SamplingParams(temperature=0, max_tokens=LENGTH)
        self.session = RemoteSession(machine.connect, Open(prompt, params), PATIENCE)
        self.script = [*prompt, *continuation(prompt, LENGTH)]
        self.reading = machine.loop.create_task(self._read())

    @property
    def tokens(self) -> list[int]:
        return self.session.truth.tokens if self.is_open else list(self.prompt)

    @property
    def is_open(self) -> bool:
        return hasattr(self.session, "truth")

    async def _read(self) -> None:
        await self.session.open()
        while not self.session.truth.finish_reason:
            hear(await self.session.next_verdict(), self.session.truth, self.session.turn)
        await self.session.close()


small = st.integers(0, 20)


class Protocol(RuleBasedStateMachine):
    policy: SchedulingPolicy = Fcfs(DRAFT_WAIT)

    @initialize()
    def start(self) -> None:
        self.loop = HandLoop()
        asyncio.set_event_loop(self.loop)
        self.servers = [self._server() for _ in range(2)]
        self.wires: list[Wire] = []
        self.tasks: list[asyncio.Task] = []
        self.current = 0
        self.devices = [Device(self, prompt) for prompt in PROMPTS]
        self.loop.settle()

    def _server(self) -> Server:
        engine = FakeEngine(num_blocks=14, context_length=60)  # little more than one sequence takes
        loop = looping(engine, self.policy, HardwareProfile(16), self.loop.time)
        return Server(
            SessionManager(loop, ServedModel("fake", engine, FakeText()), SessionLimits(8, 4, LINGER)), engine
        )

    def connect(self) -> Wire:
        wire = Wire()
        self.wires.append(wire)
        server = self.servers[self.current]
        work = serve_stream(server.manager, "local", wire.server_receive, wire.server_send, None, UNLIMITED)
        self.tasks.append(self.loop.create_task(work))
        return wire

    # -- the network --------------------------------------------------------------------------------

    def _wire(self, index: int) -> Wire:
        live = [wire for wire in self.wires if not wire.broken] or self.wires
        return live[-1 - index % len(live)]

    @precondition(lambda self: any(wire.up or wire.down for wire in self.wires))
    @rule(
        wire=small,
        upwards=st.booleans(),
        index=st.sampled_from([0, 0, 0, 1, 2]),
        copies=st.sampled_from([0, 1, 1, 1, 2]),
    )
    def deliver(self, wire: int, upwards: bool, index: int, copies: int) -> None:
        """One message arrives: in its turn or not, never, once or twice."""
        chosen = self._wire(wire)
        waiting = chosen.up if upwards else chosen.down
        if waiting:
            index %= len(waiting)
            waiting[index : index + 1] = waiting[index : index + 1] * copies
            for _ in range(copies):
                chosen.deliver(upwards, index)
        self.loop.settle()

    @rule()
    def deliver_all(self) -> None:
        for wire in self.wires:
            while wire.up or wire.down:
                wire.deliver(True, 0)
                wire.deliver(False, 0)
        self.loop.settle()

    @precondition(lambda self: self.wires)
    @rule(wire=small)
    def tear(self, wire: int) -> None:
        self._wire(wire).tear()
        self.loop.settle()

    @rule()
    def exchange(self) -> None:
        """The server dies; its place is taken by one that knows nothing, or what it knew when it was last alive."""
        self.current = 1 - self.current
        for wire in self.wires:
            wire.tear()
        self.loop.settle()

    # -- time, servers, devices ---------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 6.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.loop.advance(seconds)

    @rule(budget=st.integers(1, 12), steps=st.integers(1, 3))
    def step(self, budget: int, steps: int) -> None:
        for _ in range(steps):
            self.servers[self.current].step(HardwareProfile(budget))
        self.loop.settle()

    @rule(device=st.integers(0, 1), right=st.integers(0, 4), wrong=st.integers(0, 2))
    def draft(self, device: int, right: int, wrong: int) -> None:
        chosen = self.devices[device]
        if not chosen.is_open or chosen.reading.done():
            return
        base = len(chosen.tokens)
        ids = (chosen.script[base : base + right] + [1, 2][:wrong])[:4]
        chosen.counter += 1
        block = DraftBlock(base, tuple(map(DraftToken, ids)))
        self.loop.create_task(chosen.session.submit(Draft(chosen.counter, block)))
        self.loop.settle()

    # -- what always holds --------------------------------------------------------------------------

    @invariant()
    def anonymous_tells_the_same_story(self) -> None:
        scripts = {device.prompt: device.script for device in self.devices}
        for device in self.devices:
            assert device.tokens == device.script[: len(device.tokens)]
            assert not device.reading.done() or not device.reading.exception(), device.reading.exception()
        for server in self.servers:
            for session in server.manager.remembered:
                script = scripts[tuple(session.sequence.tokens[: session.sequence.prompt_length])]
                assert (
                    session.sequence.tokens == script[: len(session.sequence.tokens)] and not session.failed
                )

    @invariant()
    def no_stream_fails(self) -> None:
        for task in self.tasks:
            assert not task.done() or not task.exception(), task.exception()

    def teardown(self) -> None:
        """In calm weather every sequence comes to its end, and every KV block back."""
        if not hasattr(self, "loop"):
            return
        for _ in range(500):
            if all(device.reading.done() for device in self.devices):
                break
            self.deliver_all()
            if not self.servers[self.current].step(HardwareProfile(16)):
                self.loop.advance(1.0)
        finished = [device.reading.done() and device.tokens == device.script for device in self.devices]
        self.loop.advance(LINGER)
        self.loop.advance(LINGER)
        free = [server.manager.loop.machine.target.pool.num_free for server in self.servers]
        self._end()
        assert finished == [True, True] and free == [14, 14]
        assert not any(server.manager.remembered for server in self.servers)

    def _end(self) -> None:
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        for server in self.servers:
            server.manager.loop.close()
        self.loop.close()
        asyncio.set_event_loop(None)


class GoodputProtocol(Protocol):
    policy = goodput(DRAFT_WAIT)


class WhimsicalProtocol(Protocol):
    policy = Whims(Fcfs(DRAFT_WAIT))


TestProtocol = bounded(Protocol, examples=120, steps=60)
TestGoodputProtocol = bounded(GoodputProtocol, examples=25, steps=60)
TestWhimsicalProtocol = bounded(WhimsicalProtocol, examples=25, steps=60)


# -- the static policy ------------------------------------------------------------------------------------------


async def test_drafting_sessions_are_verified_together():
    engine = FakeEngine(num_blocks=400)
    params = SamplingParams(temperature=0.0, max_tokens=40)
    async with running(engine, policy=Static(5.0), max_step_tokens=512) as network:
        prompts = [[id, 2, 3] for id in range(1, 9)]
        asked = [ask(network, prompt, OracleDrafter(1.0), params) for prompt in prompts]
        await asyncio.gather(*asked)
    assert sum(engine.batches) / len(engine.batches) > 6


class StaticProtocol(Protocol):
    policy = Static(DRAFT_WAIT)


class LongStaticProtocol(StaticProtocol):
    pass


TestStaticProtocol = bounded(StaticProtocol, examples=30, steps=60)
TestLongStaticProtocol = pytest.mark.long(bounded(LongStaticProtocol, examples=100, steps=60))


# -- padding on real engines ------------------------------------------------------------------------------------


@cache
def engine_of(name: str) -> TargetEngine:
    model = str(model_path("tiny"))
    config = ServeConfig(model=model, engine=name, device="cpu", threads=1, kv_tokens=256)
    return ENGINES.get(name)(config).engine


def tokens_by(engine: TargetEngine, first_block: int, padding: int) -> list[int]:
    """What it writes after a prompt, one token a step; every step computes `padding` positions once more."""
    tokens, computed = [300, 301, 302, 303, 304], 0
    blocks = tuple(range(first_block, first_block + 64 // engine.info.block_size))
    params = SamplingParams(temperature=0.8)
    for _ in range(12):
        start = max(0, computed - padding)
        scores = engine.forward([Segment(tuple(tokens[start:]), start, blocks, rows=1)])
        computed = len(tokens)
        tokens += scores.sample_one(SampleRequest([0], params, noise_key(5), computed))
    return tokens[5:]


@pytest.mark.parametrize("name", ["torch", "llamacpp"])
@pytest.mark.parametrize("padding", [1, 3, 8])
def test_computing_positions_again_changes_no_token(name, padding):
    engine = engine_of(name)
    blocks = 64 // engine.info.block_size
    assert tokens_by(engine, blocks, padding) == tokens_by(engine, 0, 0)
