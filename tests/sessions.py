"""Sessions for tests that move a server's parts by hand."""

from collections.abc import Sequence as Ids
from dataclasses import replace

from opensled.core.messages import SamplingParams
from opensled.core.protocol import EndRules
from scheduler.estimates import DraftEstimate
from tests.fakes import EOS, VOCAB
from verify_server.kv.memory import SequenceMemory
from verify_server.riders.penalties import PenaltyCounts
from verify_server.round.device_source import DeviceDrafts
from verify_server.round.offer import DraftLimits
from verify_server.round.rider import Rider
from verify_server.round.sequence import Sequence
from verify_server.round.session import Session
from verify_server.round.session_timing import SessionTiming
from verify_server.round.sources import DraftSources
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
