"""The stage of server drafts in a step: after the rules have decided, the drafter drafts for the sessions that ask.

Its proposals are trusted as little as drafts of a device: invalid tokens are cut off, an invalid confidence is 0, and
an error of the drafter or an invalid proposal costs drafts, but never an answer. `ask_of` makes the request of a
session.
"""

from __future__ import annotations

import logging
import operator
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from hw_profiles.drafting_cost import DraftingCostModel
from hw_profiles.step_cost import DraftingCost, StepCost
from opensled.core.messages import DraftBlock, DraftToken
from scheduler.estimates import DraftEstimate
from verify_server.round.budget import DraftBudget
from verify_server.round.drafter import Ask, Proposal, ServerDrafter
from verify_server.round.server_source import ServerDrafts
from verify_server.round.session import Session
from verify_server.round.step_item import StepItem

log = logging.getLogger(__name__)

# Size of a tree / length of a chain: a policy plans with the depth of drafts, and later leaves out tokens of a tree
# that are not worth a row.
WAYS = 4


def ask_of(item: StepItem) -> Ask | None:
    """The request of one session after its step is committed; None = none, for example because it has ended."""
    session, sequence, terms = item.session, item.session.sequence, item.session.terms
    limits, server = session.sources.limits, session.sources.server
    most = min(item.ask, sequence.useful)
    if most <= 0 or sequence.finish_reason or session.closed or session.failed:
        return None
    if (prepared := server.memory.prepare(sequence, most)) is None:
        return None
    ask = Ask(
        session.id,
        session.tenant,
        sequence.tokens,
        most,
        terms.params,
        terms.key,
        prepared[0],
        computed=prepared[1],
        max_of_tree=0 if limits.tree_reads else min(limits.max_tree, WAYS * most),
    )
    for rider in session.riders:
        ask = rider.ask(ask)
    return ask


class OwnDrafts(NamedTuple):
    """The server drafts of one step."""

    proposals: Mapping[int, tuple[Proposal, int]]  # by session, each with the tokens that were asked for
    seconds: float

    def teach(self, costs: DraftingCostModel) -> None:
        """Teach `costs` the time that they took."""
        lengths = [len(proposal.block.tokens) for proposal, _ in self.proposals.values()]
        read = sum([proposal.read for proposal, _ in self.proposals.values()])
        if lengths:
            costs.observe(max(lengths), sum(lengths), read, self.seconds)


class DraftStage:
    """Runs the drafter of a server in the engine's thread."""

    def __init__(
        self,
        drafter: ServerDrafter,
        vocab_size: int,
        name: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`vocab_size`: ids that a draft may hold; `name`: of the drafter, for the metrics."""
        self.name = name
        self.drafter, self._vocab_size, self._clock = drafter, vocab_size, clock
        self._over: deque[int] = deque()  # sessions that are over

    def source(self, estimate: DraftEstimate, budget: DraftBudget | None, tenant: str) -> ServerDrafts:
        """What it drafts for one session."""
        return ServerDrafts(estimate, budget, self.drafter.place(tenant))

    def first_cost(self, target: StepCost) -> DraftingCost:
        """The assumed cost of the drafter before the first step; `target`: cost of the target's steps."""
        step_s, drafter = target.verify_s(1, 0, 1), self.drafter
        if not drafter.pass_share:
            return DraftingCost()
        return DraftingCost(drafter.pass_share * step_s, 0.0, drafter.read_share * step_s, drafter.max_passes)

    def forget(self, session: Session) -> None:
        """The session is over."""
        if session.sources.server is not None:
            session.sources.server.memory.clear()
        self._over.append(session.id)

    def run(self, asks: Sequence[Ask]) -> OwnDrafts:
        """Drafts for `asks`; none after an error."""
        began = self._clock()
        try:
            proposals = self._proposals(asks)
        except Exception:
            log.exception("the server's drafter failed; %d sequences go on without its drafts", len(asks))
            proposals = {}
        self._forget()  # last: one that asked may be over by now
        return OwnDrafts(proposals, self._clock() - began if asks else 0.0)

    def _forget(self) -> None:
        """Let the drafter forget the sessions that are over."""
        while self._over:
            try:
                self.drafter.forget(self._over.popleft())
            except Exception:
                log.exception("the server's drafter failed when a sequence was over")

    def _proposals(self, asks: Sequence[Ask]) -> dict[int, tuple[Proposal, int]]:
        """See `OwnDrafts`. Raises whatever the drafter raises, also while its proposals are read."""
        proposals = self.drafter.propose(asks) if asks else []
        return {ask.session: (self._usable(ask, made), ask.most) for ask, made in zip(asks, proposals)}

    def _usable(self, ask: Ask, proposal: Proposal) -> Proposal:
        """The draft up to the first id that the target does not know and up to the requested length, with counts in
        their possible range."""
        block = proposal.block
        follows = block.base == ask.length and (not block.parents or _is_tree(block))
        most = ask.max_of_tree if block.parents else ask.most
        tokens = map(_token, block.tokens[:most] if follows else ())
        known = tuple(takewhile(lambda token: 0 <= token.id < self._vocab_size, tokens))
        read, unread = (min(ask.length, max(0, operator.index(count))) for count in proposal[1:])
        return Proposal(DraftBlock(ask.length, known, tuple(block.parents[: len(known)])), read, unread)


def _is_tree(block: DraftBlock) -> bool:
    """Whether a parent stands before each token; raises TypeError where a parent is no whole number."""
    parents = map(operator.index, block.parents)
    is_before = all(-1 <= parent < index for index, parent in enumerate(parents))
    return is_before and len(block.parents) == len(block.tokens)


def _token(token: DraftToken) -> DraftToken:
    """With an int and a probability; raises TypeError where the id is no whole number."""
    confidence = min(1.0, max(0.0, float(token.confidence)))  # in this order NaN becomes 0
    return DraftToken(operator.index(token.id), confidence)
