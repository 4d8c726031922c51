"""Sessions for tests that move a server's parts by hand."""

from collections.abc import Sequence as Ids
from dataclasses import replace

from opensled.core.messages import Draft, DraftBlock, DraftToken, Prefill, SamplingParams, Verdict
from opensled.core.protocol import EndRules
from scheduler.estimates import DraftEstimate
from scheduler.plan import Slice
from tests.fakes import EOS, VOCAB, FakeEngine, continuation, next_token
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
