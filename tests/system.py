"""The whole system in one process: server loop, manager, link, edge loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RemoteSession, RetryPolicy
from edge_client.round.commits import Commit
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from hw_profiles.step_cost import HardwareProfile
from opensled.core.messages import Open, SamplingParams
from scheduler.fcfs import Fcfs
from scheduler.plan import SchedulingPolicy
from tests.fakes import IMPATIENT, FakeText, MemoryNetwork, Weather
from tests.loops import cancelled
from tests.rounds import looping
from verify_server.admission.session_manager import SessionLimits, SessionManager
from verify_server.round.draft_stage import DraftStage
from verify_server.round.drafter import ServerDrafter
from verify_server.round.loaded_model import ServedModel
from verify_server.round.machine import StepMachine
from verify_server.round.outbox import Outbox

FOREVER = float("inf")
CALM = RetryPolicy(silence=20.0)


@dataclass
class Answer:
    """One finished sequence, with what the edge saw of it."""

    tokens: tuple[int, ...]
    finish_reason: str
    commits: list[Commit]
    reopened: int

    @property
    def logprobs(self):
        return [entry for commit in self.commits for entry in commit.logprobs]

    @property
    def rounds(self) -> list[Commit]:
        return [commit for commit in self.commits if commit.drafted]


@asynccontextmanager
async def running(
    engine,
    *,
    draft_wait: float = FOREVER,
    policy: SchedulingPolicy | None = None,
    max_step_tokens: int = 64,
    limits: SessionLimits = SessionLimits(linger=0.2),
    weather: Weather = Weather(),
    text=None,
    machine: type[StepMachine] = StepMachine,
    network_type: type[MemoryNetwork] = MemoryNetwork,
    drafter: ServerDrafter | None = None,
    **memory: object,
) -> AsyncIterator[MemoryNetwork]:
    """A server over `engine` and a network to it; on exit every KV block must be back. `policy`: else `Fcfs`;
    `drafter`: beside the target; `memory`: of `BlockTarget`."""
    policy = policy or Fcfs(draft_wait)
    stage = DraftStage({"": drafter}, engine.info.vocab_size) if drafter else None
    profile = HardwareProfile(max_step_tokens)
    loop = looping(engine, policy, profile, time.monotonic, stage, machine, learns=True, **memory)
    text = text or FakeText(engine.info.vocab_size)
    manager = SessionManager(loop, ServedModel("fake", engine, text), limits)
    network = network_type(manager, weather)
    serving = asyncio.ensure_future(loop.run())
    try:
        yield network
        await network.close()
        for session in list(manager.remembered):
            manager.forget(session)
        # A step still holds some
        while loop.machine.target.pool.num_free < loop.machine.target.pool.num_blocks:
            assert not serving.done(), serving.result()
            await asyncio.sleep(0.001)
    finally:
        await cancelled(serving)
        loop.close()


async def ask(
    network: MemoryNetwork,
    prompt: Sequence[int],
    drafter,
    params: SamplingParams = SamplingParams(temperature=0.0, max_tokens=40),
    *,
    stop: FixedLength = FixedLength(4),
    patience: RetryPolicy = CALM,
    session_type: type[RemoteSession] = RemoteSession,
    **request,
) -> Answer:
    """One sequence from open to finish; `request`: further fields of its `Open`."""
    session = session_type(network.connect, Open(tuple(prompt), params, **request), patience)
    with closing(DraftThread(drafter, stop)) as thread:
        await session.open()
        commits = [commit async for commit in generate(session, thread, params)]
        return Answer(session.truth.generated, session.truth.finish_reason, commits, session.reopened)


def read_now(outbox: Outbox):
    """The next message of an outbox that holds one, without an event loop."""
    assert len(outbox), "an empty outbox is read"
    try:
        outbox.get().send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("an outbox with a message must not wait")


async def until(condition, seconds=20.0):
    """Wait until `condition()` holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        await asyncio.sleep(0.002)


async def through(network, open, lost_at=0):
    """([tokens of the prompt], ids of the answer) of a device that drafts nothing; `open`: what it asks for."""
    session, tokens = RemoteSession(network.connect, open, IMPATIENT), []
    thread = DraftThread(NoneDrafter(), FixedLength(4))

    def hear(prefill):
        tokens.extend(prefill.tokens)

    session.hear_prefill = hear
    try:
        await session.open()
        async for _ in generate(session, thread, open.params):
            pass
        return tokens, session.truth.generated
    finally:
        thread.close()
