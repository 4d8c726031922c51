"""Sessions for tests that move a server's parts by hand."""

from collections.abc import Sequence as Ids
from dataclasses import replace

from hw_profiles.step_cost import HardwareProfile, Roofline
from opensled.core.messages import Draft, DraftBlock, DraftToken, Prefill, SamplingParams, Verdict
from opensled.core.protocol import EndRules
from scheduler.estimates import DraftEstimate
from scheduler.fcfs import Fcfs
from scheduler.plan import Slice
from tests.fakes import EOS, VOCAB, FakeEngine, continuation, next_token
from tests.rounds import end, looping
from tests.system import read_now
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.kv.memory import SequenceMemory
from verify_server.riders.penalties import PenaltyCounts
from verify_server.round.device_source import DeviceDrafts
from verify_server.round.offer import DraftLimits
from verify_server.round.rider import Rider
from verify_server.round.sequence import Sequence
from verify_server.round.session import Session
from verify_server.round.session_timing import SessionTiming
from verify_server.round.sources import DraftSources
from verify_server.round.step import run_step
from verify_server.round.terms import Terms
from verify_server.rules.match import Match

GREEDY = SamplingParams(temperature=0)


def changed(session: Session, **limits: object) -> None:
    """Other limits of a session's drafts, and another `rule`, than it was opened with."""
    session.terms = replace(session.terms, rule=limits.pop("rule", session.terms.rule))
    session.sources.limits = session.sources.limits._replace(**limits)


def made(
    id: int,
    prompt: Ids[int],
    max_tokens: int,
    memory: SequenceMemory,
    limits: DraftLimits = DraftLimits(VOCAB, 8),
    *,
    tenant: str = "t",
    eos: int = EOS,
    params: SamplingParams = GREEDY,
    key: bytes = b"",
    estimate: DraftEstimate | None = None,
    pace: float = 0.0,
    background: bool = False,
    riders: tuple[Rider, ...] = (),
) -> Session:
    """A session without a reader; the keyword arguments are those of the classes it is made of."""
    ends = EndRules(frozenset({eos}), frozenset(params.stop_ids), len(prompt) + max_tokens)
    if params.penalizes:
        riders += (PenaltyCounts(len(prompt), prompt),)
    terms = Terms(params, key, Match(), background=background)
    sources = DraftSources(limits, DeviceDrafts(estimate))
    sequence = Sequence(prompt, len(prompt), ends, memory)
    return Session(id, tenant, sequence, terms, sources, riders, timing=SessionTiming(pace))


PROMPT = [3, 1, 4, 1, 5]


class Bench:
    """A session, its engine and the hand that turns the crank."""

    def __init__(self, prompt=PROMPT, max_tokens=30, stop_ids=(), target=next_token):
        self.engine = FakeEngine(num_blocks=32, target=target)
        self.pool = BlockPool(32, self.engine.block_size)
        params = SamplingParams(temperature=0, stop_ids=tuple(stop_ids))
        self.session = made(1, prompt, max_tokens, BlockTable(self.pool), params=params)
        self.session.attach(len(prompt))
        self.counter = 0

    def draft(self, *ids, base=None):
        self.counter += 1
        base = len(self.session.sequence.tokens) if base is None else base
        self.session.submit(Draft(self.counter, DraftBlock(base, tuple(DraftToken(id) for id in ids))), 0.0)

    def step(self, tokens=None, decide=True):
        """Compute up to the newest token (or `tokens` of them) and decide; returns the verdict."""
        session = self.session
        tokens = len(session.sequence.tokens) - session.sequence.computed if tokens is None else tokens
        planned = session.plan(Slice(1, tokens, decide), 0.0)
        session.commit(planned, run_step(self.engine, [planned])[0], now=1.0)
        return self.verdict() if decide else None

    def verdict(self) -> Verdict:
        while isinstance(message := read_now(self.session.outbox), Prefill):
            pass
        return message

    def right(self, count):
        return continuation(self.session.sequence.tokens, count)


# Steps of 10 ms for up to 10 sessions, then a millisecond for each.
PROFILE = HardwareProfile(512, Roofline(read_s=0.01, token_s=0.001, context_s=0, session_s=0, overhead_s=0))
PROMPTS = ([3] * 30, [7] * 30)
POOL = {"num_blocks": 10, "block_size": 4}  # one of the two and a little
PARAMS = SamplingParams(temperature=0, max_tokens=8)


class Pressed:
    """Sequences in less memory than they want, and a clock moved by hand."""

    def __init__(
        self, draft_wait: float, prompts=PROMPTS, pool=POOL, *, max_step_tokens: int = 16, **sharing
    ) -> None:
        self.engine, self.now = FakeEngine(**pool), 0.0
        profile = HardwareProfile(max_step_tokens)
        self.loop = looping(self.engine, Fcfs(draft_wait), profile, lambda: self.now, **sharing)
        self.sessions: list[Session] = []
        for prompt in prompts:
            self.open(prompt)

    def open(
        self, prompt: list[int], tenant: str = "t", max_tokens: int = PARAMS.max_tokens, budget: int = 0
    ) -> Session:
        table = BlockTable(self.loop.machine.target.pool, tenant, budget)
        limits = DraftLimits(VOCAB, 4)
        session = made(len(self.sessions), prompt, max_tokens, table, limits, tenant=tenant, params=PARAMS)
        self.sessions.append(session)
        self.loop.add(session)
        self.loop.attach(session, len(prompt))
        return session

    def draft(self, session: Session, counter: int) -> None:
        wrong = (DraftToken(48),)
        self.loop.submit(session, Draft(counter, DraftBlock(len(session.sequence), wrong)))

    def step(self, *slices: Slice) -> set[int]:
        """A step of these slices, or else of the policy's; who was computed in it."""
        planned = self.loop.machine.plan(self.now).slices
        work = self.loop.machine.fit(slices or planned, self.now)
        if work:
            end(self.loop, work, run_step(self.engine, work))
        return {planned.session.id for planned in work}

    def work_off(self, steps: int) -> int:
        """Steps until there is nothing to do; at most `steps`."""
        for done in range(steps):
            if not self.step():
                return done
        return steps

    def must_finish(self, steps: int) -> None:
        """Everybody's text is complete and right after at most `steps` steps, with time going by between them."""
        for _ in range(steps):
            if not self.step():
                self.now += 1.0
            if all(session.sequence.finish_reason for session in self.sessions):
                break
        for session in self.sessions:
            prompt, answer = (
                session.sequence.tokens[: session.sequence.prompt_length],
                session.sequence.tokens[session.sequence.prompt_length :],
            )
            assert session.sequence.finish_reason == "length"
            assert answer == continuation(prompt, len(answer))


class Crank:
    """One engine and its memory; the hand that turns the crank."""

    def __init__(self):
        self.engine, self.opened = FakeEngine(num_blocks=32), 0
        self.pool = BlockPool(32, self.engine.block_size, prefix_key=b"a secret of this test")

    def session(self, prompt, max_tokens=20, riders=()):
        self.opened += 1
        session = made(self.opened, prompt, max_tokens, BlockTable(self.pool), riders=riders)
        session.attach(len(prompt))
        return session

    def step(self, session, tokens, decide=False):
        item = session.plan(session.limit_slice(Slice(session.id, tokens, decide)), 0.0)
        session.commit(item, run_step(self.engine, [item])[0], 1.0)
        return item
