"""The drafter's own thread: one hop per block, never one per token; a flag interrupts between two tokens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from typing import NamedTuple, Protocol

from edge_client.drafters.base import Drafter
from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.base import DraftLengthPolicy, pulled
from edge_client.lookahead import LookAhead
from opensled.messages import DraftBlock, DraftToken, TreeNode
from opensled.protocol import Truth
from opensled.sampling import Sampler, SparseSampler

log = logging.getLogger(__name__)


class Drafted(NamedTuple):
    """A block, and how many seconds it took to draft, ahead of time or not; 0 = not told."""

    block: DraftBlock
    seconds: float = 0.0


class BlockBudget(NamedTuple):
    """How much a block may hold."""

    length: int  # tokens of a chain, or the depth of a tree
    tree: int = 0  # tokens of a tree; 0 = chains only
    hint: int | None = None  # the server's advice: longest useful chain, or depth; None = it gave none
    rule: DraftLengthPolicy | None = None  # of this one block, instead of the device's own


class Drafting(Protocol):
    """What the edge loop asks for drafts: a drafter in its thread, or drafts recorded earlier."""

    stop: DraftLengthPolicy

    @property
    def wasted(self) -> int:
        """Tokens so far that were drafted ahead, and in vain."""

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """Start a sequence; nobody waits for the prompt to be read."""

    def draft(self, truth: Truth, room: BlockBudget) -> asyncio.Future[Drafted]:
        """Draft what is to follow the truth as it is now; ends whatever else the drafter does."""

    def look_ahead(self, block: DraftBlock, room: BlockBudget) -> None:
        """Work ahead on what may follow `block`, which has just been sent, until the next call of anything."""

    def heard(self, truth: Truth) -> None:
        """The truth grew: a block being drafted that it contradicts ends here."""

    def interrupt(self) -> None:
        """Whatever is being drafted is not needed any more."""


@dataclass
class Job:
    """One sequence in the drafter's thread. A job that is over must not disturb the next one."""

    known: int  # tokens of the truth the drafter has heard of
    over: bool = False  # interrupted, or failed
    sparse: bool = False  # each token must name the distribution it was drawn from
    base: int = 0  # of the block being drafted, and
    since: tuple[int, ...] = ()  # what is known of the truth after that
    bet: LookAhead | None = None  # on the latest block
    ready: int = 0  # tokens that were drafted ahead and stand, and
    ready_s: float = 0.0  # the seconds that each of them took
    fresh: bool = True  # nothing was proposed yet, so that the prompt is still to be read

    def end_bet(self) -> None:
        if self.bet is not None:
            self.bet.over = True


class DraftThread:
    """Runs one drafter for one sequence at a time.

    A drafter that fails stops proposing until the next sequence: its user then reads the server's own tokens.
    Ids outside [0, vocab_size) end a block: the target does not know them.
    """

    def __init__(
        self, drafter: Drafter, stop: DraftLengthPolicy, vocab_size: int = 1 << 31, looks_ahead: bool = True
    ) -> None:
        self._drafter, self.stop, self._vocab_size = drafter, stop, vocab_size
        # A policy of lengths learns from what it is asked: it is asked only where the drafter can act on the answer.
        self._looks_ahead = looks_ahead and type(drafter).look_ahead is not Drafter.look_ahead
        self._has_trees = type(drafter).propose_tree is not Drafter.propose_tree
        self.drafts = not isinstance(drafter, NoneDrafter)  # whether it ever proposes anything
        self.wasted = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="drafter")
        self._job = Job(0, over=True)

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """See `Drafting`; the drafter reads the prompt in its thread."""
        self.interrupt()
        self._job = Job(len(truth), sparse=isinstance(sampler, SparseSampler))
        self.wasted = 0
        stop = self.stop
        sampler = replace(
            sampler,
            with_confidence=stop.needs_confidence,
            with_spread=stop.needs_spread,
            vocab_size=self._vocab_size,
        )
        self._thread.submit(self._guarded, self._job, self._drafter.begin, list(truth.tokens), sampler)

    def draft(self, truth: Truth, room: BlockBudget) -> asyncio.Future[Drafted]:
        """See `Drafting`; the seconds are the drafter's own, without the wait for its thread."""
        job = self._job
        news, job.known = tuple(truth.tokens[job.known :]), len(truth)
        job.end_bet()
        job.base, job.since = len(truth), ()
        work = partial(self._draft, job, news, job.base, room)
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def look_ahead(self, block: DraftBlock, room: BlockBudget) -> None:
        """See `Drafting`. Nothing is bet on one path of a tree."""
        if self._looks_ahead and not block.parents:
            job = self._job
            job.bet = LookAhead(block)
            self._thread.submit(self._guarded, job, self._ahead, job.bet, room)

    def heard(self, truth: Truth) -> None:
        """See `Drafting`. What was drafted ahead of a block that the truth contradicts is in vain as well."""
        job = self._job
        job.since = tuple(truth.tokens[job.base :])
        if job.bet is not None:
            job.bet.heard(truth)

    def interrupt(self) -> None:
        """See `Drafting`."""
        job = self._job
        job.over = True
        job.end_bet()
        bet, job.bet = job.bet, None
        if bet is not None:  # nobody will ever ask for what it drafted
            self.wasted += bet.tokens

    def close(self) -> None:
        self.interrupt()
        self._thread.submit(self._drafter.close)
        self._thread.shutdown()

    def _draft(self, job: Job, news: tuple[int, ...], base: int, room: BlockBudget) -> Drafted:
        nodes: list[TreeNode] = []
        if news:
            self._guarded(job, self._drafter.commit, news)
        job.ready, job.ready_s = 0, 0.0
        self._guarded(job, self._settle, job)
        started = time.monotonic()
        self._guarded(job, self._propose, job, room, nodes)
        seconds = time.monotonic() - started + min(job.ready, len(nodes)) * job.ready_s
        known = tuple(takewhile(lambda node: self._usable(job, node.token), nodes))
        tokens = tuple([node.token for node in known])
        is_chain = all(node.parent == index - 1 for index, node in enumerate(known))
        return Drafted(
            DraftBlock(base, tokens, () if is_chain else tuple([n.parent for n in known])), seconds
        )

    def _usable(self, job: Job, token: DraftToken) -> bool:
        """Whether the target knows the id and, where it must, the distribution it was drawn from."""
        return 0 <= token.id < self._vocab_size and (not job.sparse or token.drawn_from is not None)

    def _propose(self, job: Job, room: BlockBudget, block: list[TreeNode]) -> None:
        drafter, rule = self._drafter, room.rule or self.stop
        if self._has_trees and room.length and not job.sparse:
            nodes = rule.nodes(room.tree, room.hint)
            if nodes:
                block.extend(islice(drafter.propose_tree(), nodes))
            if block:
                return
        # By rule `ratio` how much is sent must not depend on what was drawn, and what is ready may.
        length = rule.most(room.length, room.hint, 0 if job.sparse else job.ready)

        def interrupted() -> bool:
            return job.over or self._overtaken(job, block)

        untimed, job.fresh = max(job.ready, job.fresh), False
        started = time.monotonic()
        for token in pulled(rule, drafter.propose(), length, interrupted):
            block.append(TreeNode(token, len(block) - 1))
            if len(block) > untimed:
                self.stop.drafted(1, time.monotonic() - started)
            started = time.monotonic()

    def _settle(self, job: Job) -> None:
        """Now that the truth is known: how many tokens are ready, and the seconds that each of them took."""
        job.ready = self._drafter.ready
        bet, job.bet = job.bet, None
        if bet is not None:
            job.ready_s = bet.token_s
            self.wasted += bet.wasted(job.ready)

    @staticmethod
    def _overtaken(job: Job, block: list[TreeNode]) -> bool:
        """Whether the truth contradicts the block, or has got further than it."""
        since = job.since
        return bool(since) and tuple([node.token.id for node in block[: len(since)]]) != since

    def _ahead(self, bet: LookAhead, room: BlockBudget) -> None:
        length = self.stop.ahead(room.length, room.hint)
        if length:
            bet.work(self._drafter, length, self.stop.drafted)

    def _guarded(self, job: Job, work: Callable[..., None], *arguments: object) -> None:
        if job.over:
            return
        try:
            work(*arguments)
        except Exception:
            log.exception("the drafter failed; this sequence goes on without drafts")
            job.over = True
