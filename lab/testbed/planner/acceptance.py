"""What drafts of each length are worth: tokens a round commits, and tokens it drafts for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, repeat
from random import Random
from statistics import fmean

from hw_profiles.speculation import reach
from lab.testbed.load.slo import SHARE
from lab.testbed.traces import ItemTrace, Proposal, TraceSet
from opensled.core.protocol import common_prefix

LENGTHS = range(9)  # draft lengths the planner chooses from; 0 = no draft

READ = 120  # tokens over which a user's pace is measured, as in the simulated runs that find a capacity
USERS = 400  # drawn at random to find the unlucky one

Block = Callable[[Proposal, int], Sequence[int]]  # ids of the block of at most so many tokens


@dataclass(frozen=True)
class DraftWorth:
    """Means over rounds, by draft length k from 0 on."""

    tokens: tuple[float, ...]  # committed by a round, its bonus or recovered token included; [0] is 1
    drafted: tuple[float, ...]  # draft tokens of a round: k, or fewer where a stop rule ends blocks early
    unlucky: tuple[float, ...]  # tokens of a round of the unluckiest user who is to be served (`slo.SHARE`)
    source: str

    @property
    def first(self) -> float:
        """Share of rounds whose first draft token is accepted."""
        return self.tokens[1] - 1


def by_place(*rates: float) -> DraftWorth:
    """Each draft token is accepted with the probability of its place, or the last of them, if the one before it was:
    E = 1 + a + ... + a^k for a single one. All users are alike.
    """
    chances = [rates[min(k, len(rates)) - 1] for k in LENGTHS[1:]]
    tokens = tuple(accumulate(map(float, reach(chances))))
    return DraftWorth(tokens, tuple(map(float, LENGTHS)), tokens, f"{rates[0]:g} at each position")


def of_traces(traces: TraceSet, confidence: float = 0.0) -> DraftWorth:
    """Recorded drafts replayed at every draft length, one round after another; `confidence` is SLED's c_th."""
    means = [
        _means(traces.items, k, lambda proposal, length: _block(proposal, length, confidence))
        for k in LENGTHS
    ]
    tokens, drafted, unlucky = (tuple(column) for column in zip(*means))
    return DraftWorth(tokens, drafted, unlucky, f"recorded ({traces.drafter} for {traces.target})")


def _means(items: Sequence[ItemTrace], length: int, block: Block) -> tuple[float, float, float]:
    """Tokens, drafted and unlucky of one draft length, as in `DraftWorth`."""
    rounds = [_rounds(item, length, block) for item in items]
    tokens, drafted = map(fmean, zip(*(one for several in rounds for one in several)))
    texts = [len(item.target_ids) for item in items]
    return tokens, drafted, _unlucky(texts, [len(several) for several in rounds])


def _unlucky(texts: Sequence[int], rounds: Sequence[int]) -> float:
    """Tokens a round that a share SHARE of the users exceed, who each read READ tokens of random items."""
    draw = Random(0)
    users = sorted(_luck(texts, rounds, draw) for _ in range(USERS))
    return users[round((1 - SHARE) * USERS)]


def _luck(texts: Sequence[int], rounds: Sequence[int], draw: Random) -> float:
    tokens = verdicts = 0
    while tokens < READ:
        item = draw.randrange(len(texts))
        tokens, verdicts = tokens + texts[item], verdicts + rounds[item]
    return tokens / verdicts


def _rounds(item: ItemTrace, length: int, block: Block) -> list[tuple[int, int]]:
    """(tokens committed, tokens drafted) of each round; the last token of a text needs no draft."""
    rounds, place, end = [], 0, len(item.target_ids)
    while place < end:
        drafted = block(item.proposals[place], min(length, end - place - 1))
        accepted = common_prefix(drafted, item.target_ids[place : place + length])
        rounds.append((accepted + 1, len(drafted)))
        place += accepted + 1
    return rounds


def _block(proposal: Proposal, length: int, confidence: float) -> tuple[int, ...]:
    """The block ends before the first token of less confidence, as edge_client/lengths/fixed.py ends it."""
    for number, each in enumerate(proposal.confidences[:length]):
        if each < confidence:
            return proposal.ids[:number]
    return proposal.ids[:length]


def adapted(traces: TraceSet, *rates: float, seed: int = 0) -> TraceSet:
    """The texts of `traces` with drafts of which each token is right with the probability of its place, or the last of
    `rates`; the same for a seed.

    The draft is sure of all of them, so that no confidence threshold ends a block. Wrong ids are in the vocabulary too:
    a real server takes them.
    """
    draw = Random(seed)
    items = tuple(replace(item, proposals=_proposals(item, rates, draw)) for item in traces.items)
    return TraceSet(traces.target, f"made up, {rates[0]:g} right", {"made": rates[0], **traces.origin}, items)


def _proposals(item: ItemTrace, rates: Sequence[float], draw: Random) -> tuple[Proposal, ...]:
    made = []
    for place, recorded in enumerate(item.proposals):
        text = item.target_ids[place : place + len(recorded.ids)]
        chances = chain(rates, repeat(rates[-1]))
        ids = tuple(token if draw.random() < rate else _other(token) for token, rate in zip(text, chances))
        made.append(Proposal(ids, (1.0,) * len(ids)))
    return tuple(made)


def _other(token: int) -> int:
    return token - 1 if token else 1
