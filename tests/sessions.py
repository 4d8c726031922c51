"""Sessions for tests that move a server's parts by hand."""

from __future__ import annotations

from collections.abc import Sequence as Ids

from opensled.messages import SamplingParams
from opensled.protocol import EndRules
from scheduler.estimates import DraftEstimate
from tests.fakes import EOS, VOCAB
from verify_server.acceptance.match import Match
from verify_server.kv.blocks import BlockTable
from verify_server.offers.device import DeviceDrafts
from verify_server.offers.offer import DraftLimits
from verify_server.offers.sources import DraftSources
from verify_server.prompt_scores import PromptScores
from verify_server.sequence import Sequence
from verify_server.session import Session
from verify_server.session_timing import SessionTiming

GREEDY = SamplingParams(temperature=0)


def made(
    id: int,
    prompt: Ids[int],
    max_tokens: int,
    table: BlockTable,
    limits: DraftLimits = DraftLimits(VOCAB, 8),
    *,
    tenant: str = "t",
    eos: int = EOS,
    params: SamplingParams = GREEDY,
    key: bytes = b"",
    estimate: DraftEstimate | None = None,
    pace: float = 0.0,
    background: bool = False,
    scores: PromptScores | None = None,
) -> Session:
    """A session without a reader; the keyword arguments are those of the classes it is made of."""
    ends = EndRules(frozenset({eos}), frozenset(params.stop_ids), len(prompt) + max_tokens)
    return Session(
        id, tenant, Sequence(prompt, len(prompt), ends, table, scores=scores), params, key, Match(),
        DraftSources(limits, DeviceDrafts(estimate)), background=background, timing=SessionTiming(pace),
    )  # fmt: skip
