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
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from hw_profiles.drafting_cost import DraftingCostModel
from hw_profiles.step_cost import DraftingCost, StepCost
from opensled.core.messages import DraftBlock, DraftToken
from scheduler.estimates import DraftEstimate, Forecast
from verify_server.kv.blocks import BlockPool
from verify_server.kv.guests import GuestPool
from verify_server.kv.memory import NOTHING
from verify_server.round.budget import DraftBudget
from verify_server.round.drafter import Ask, Proposal, ServerDrafter
from verify_server.round.server_source import ServerDrafts
from verify_server.round.session import Session
from verify_server.round.step_item import StepItem

log = logging.getLogger(__name__)

# Size of a tree / length of a chain: a policy plans with the depth of drafts, and later leaves out tokens of a tree
# that are not worth a row.
WAYS = 4
# Assumed time of a pass of a draft model, a head, or an early exit, as a share of a step of the target (chosen).
GUESS, HEAD_GUESS, EXIT_GUESS = 0.25, 0.1, 0.4
READS = 8  # tokens of text that a draft model is assumed to read in such a pass (chosen)


def ask_of(item: StepItem) -> Ask | None:
    """The request of one session after its step is committed; None = none, for example because it has ended, or
    because there is no room for the KV of a draft model."""
    session, sequence, terms = item.session, item.session.sequence, item.session.terms
    limits, server = session.sources.limits, session.sources.server
    most = min(item.ask, sequence.useful)
    if most <= 0 or sequence.finish_reason or session.closed or session.failed:
        return None
    blocks, computed = item.blocks, 0
    if server.kv is not None:
        blocks, computed = server.kv.prepare(sequence.tokens, sequence.confirmed, most)
        if not blocks:
            return None
    ask = Ask(
        session.id,
        session.tenant,
        sequence.tokens,
        most,
        terms.params,
        terms.key,
        blocks,
        computed=computed,
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
        self._drafter, self._vocab_size, self._clock = drafter, vocab_size, clock
        self._over: deque[int] = deque()  # sessions that are over
        self._guests: GuestPool | None = None

    @property
    def guess(self) -> Forecast:
        """See `ServerDrafter`."""
        return self._drafter.guess

    def lodge(self, host: BlockPool) -> None:
        """The target has the KV blocks of `host`; see `ServerDrafter`."""
        self._guests = self._drafter.lodge(host)

    def source(
        self,
        estimate: DraftEstimate,
        budget: DraftBudget | None = None,
        tenant: str = "",
        content: Mapping[int, int] = NOTHING,
    ) -> ServerDrafts:
        """What it drafts for one session of a tenant; `content`: of its text, see `BlockTable`."""
        kv = self._guests.place(tenant, content) if self._guests is not None else None
        return ServerDrafts(estimate, self._drafter.needs_kv, self._drafter.reads_blocks, budget, kv)

    def first_cost(self, target: StepCost) -> DraftingCost:
        """The assumed cost of the drafter before the first step; `target`: cost of the target's steps."""
        step_s = target.verify_s(1, 0, 1)
        needs_kv = self._drafter.needs_kv
        if needs_kv and self._drafter.reads_blocks:
            return DraftingCost(EXIT_GUESS * step_s, 0.0, 0.0)
        if self._drafter.reads_blocks:
            return DraftingCost(HEAD_GUESS * step_s, 0.0, 0.0, max_passes=1)
        return DraftingCost(GUESS * step_s, 0.0, GUESS * step_s / READS) if needs_kv else DraftingCost()

    def asks(self, items: Iterable[StepItem]) -> list[Ask]:
        """The requests after a committed step."""
        asks = [ask for ask in map(ask_of, items) if ask is not None]
        if asks and self._guests is not None:
            self._guests.keep_freed()  # it writes there until `settle`
        return asks

    def settle(self) -> None:
        """It has drafted after the step, if it was asked at all."""
        self._forget()
        if self._guests is not None:
            self._guests.release_freed()

    def forget(self, session: Session) -> None:
        """The session is over."""
        self._over.append(session.id)
        server = session.sources.server
        if server is not None and server.kv is not None:
            server.kv.clear()

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
                self._drafter.forget(self._over.popleft())
            except Exception:
                log.exception("the server's drafter failed when a sequence was over")

    def _proposals(self, asks: Sequence[Ask]) -> dict[int, tuple[Proposal, int]]:
        """See `OwnDrafts`. Raises whatever the drafter raises, also while its proposals are read."""
        proposals = self._drafter.propose(asks) if asks else []
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
