"""The stage of server drafts in a step: after the rules have decided, drafters draft for the sessions that ask.

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

from opensled.core.messages import DraftBlock, DraftToken
from scheduler.estimates import DeviceBook
from verify_server.kv.blocks import BlockPool
from verify_server.round.budget import DraftBudget
from verify_server.round.drafter import Ask, Proposal, ServerDrafter
from verify_server.round.rider import Rider
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
    sources = session.sources
    most = min(item.ask, sequence.useful)
    if most <= 0 or sequence.finish_reason or session.closed or session.failed:
        return None
    if (prepared := sources.servers[item.drafter].memory.prepare(sequence, most)) is None:
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
        max_of_tree=0 if sources.limits.tree_reads else min(sources.limits.max_tree, WAYS * most),
        drafter=item.drafter,
    )
    for rider in session.riders:
        ask = rider.ask(ask)
    return ask


class OwnDrafts(NamedTuple):
    """What one drafter drafted after a step."""

    proposals: Mapping[int, tuple[Proposal, int]]  # by session, each with the tokens that were asked for
    seconds: float
    drafter: int = 0


class DraftStage:
    """Runs the drafters of a server in the engine's thread."""

    def __init__(
        self,
        drafters: Mapping[str, ServerDrafter],
        vocab_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`drafters`: by the name that metrics have for each; `vocab_size`: ids that a draft may hold."""
        self.drafters, self._vocab_size, self._clock = drafters, vocab_size, clock
        self._in_turn = list(drafters.values())
        self._books = [
            DeviceBook(drafter.guess) for drafter in self._in_turn
        ]  # tenants learn nothing of each other
        self._over: deque[int] = deque()  # sessions that are over

    def lodge(self, host: BlockPool) -> None:
        """See `ServerDrafter`."""
        for drafter in self._in_turn:
            drafter.lodge(host)

    def sources(self, tenant: str, riders: tuple[Rider, ...] = ()) -> list[ServerDrafts]:
        """The drafts of each drafter for one session."""
        return [
            ServerDrafts(book.of(tenant, ""), DraftBudget(riders=riders), drafter.place(tenant))
            for drafter, book in zip(self._in_turn, self._books)
        ]

    def forget(self, session: Session) -> None:
        """The session is over."""
        for source in session.sources.servers:
            source.memory.clear()
        self._over.append(session.id)

    def run(self, asks: Sequence[Ask]) -> list[OwnDrafts]:
        """Drafts for `asks`, by drafter; none of one with an error."""
        made = [
            self._run(each, [ask for ask in asks if ask.drafter == each])
            for each in {ask.drafter for ask in asks}
        ]
        self._forget()  # last: one that asked may be over by now
        return made

    def _run(self, drafter: int, asks: Sequence[Ask]) -> OwnDrafts:
        began = self._clock()
        try:
            made = zip(asks, self._in_turn[drafter].propose(asks))
            proposals = {ask.session: (self._usable(ask, proposal), ask.most) for ask, proposal in made}
        except Exception:
            log.exception("a drafter of the server failed; %d sequences go on without its drafts", len(asks))
            proposals = {}
        return OwnDrafts(proposals, self._clock() - began, drafter)

    def _forget(self) -> None:
        """Let the drafters forget the sessions that are over."""
        while self._over:
            session = self._over.popleft()
            for drafter in self._in_turn:
                try:
                    drafter.forget(session)
                except Exception:
                    log.exception("a drafter of the server failed when a sequence was over")

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
