"""The job of drafting for one sequence: the tokens of each block, drafting ahead, and the end of both.

This module has no thread and no clock. Work is a generator: it yields before the first pass of the drafter and after
each pass, and the driver sends the time, in seconds on its own clock. The drafter's thread (drafting.py) sends real
time; emulation and simulation send the time given by the profile of a device.

Before the first draft, a long text is read in short pieces. Between two pieces the job hears of the tokens that the
server commits meanwhile, and drafts after them. The server never waits while the job reads.

Look-ahead: the drafter goes on while a verdict is in transit. It bets that the whole block is accepted, and that the
token it drafts next is the bonus token, which with shared noise is as likely as any draft token. If the verdict
confirms both, the tokens drafted after that token are the head of the next block and need no pass. Otherwise the work
is wasted, and the device loses at most one pass.

Two pieces of the job come first: how much of a long text a pass reads, and the work ahead of one block.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple, TypeVar

from edge_client.drafters.base import Drafter
from edge_client.lengths.base import DraftLengthPolicy, pull_tokens
from opensled.core.messages import DraftBlock, TreeNode
from opensled.core.protocol import rebase
from opensled.core.sampling import Sampler

log = logging.getLogger(__name__)

FIRST_PIECE, LONGEST_PIECE = 16, 512  # tokens of a long text that are read in one pass
# Seconds that such a pass is to take: a verdict waits for its end, and short passes read slowly (chosen)
PIECE_S = 0.05

Result = TypeVar("Result")
Work = Generator[None, float, Result]  # receives the time after each pass, in seconds


@dataclass
class Pieces:
    """The number of tokens for the next pass of reading."""

    length: int = FIRST_PIECE

    def took(self, began: float, ended: float) -> float:
        """A piece was read from `began` to `ended`, in seconds; returns `ended`."""
        if ended > began:
            fitting = int(self.length * PIECE_S / (ended - began))
            self.length = min(max(fitting, FIRST_PIECE // 2), LONGEST_PIECE)
        return ended


@dataclass
class LookAhead:
    """The work ahead of one block."""

    block: DraftBlock  # a chain that was sent
    over: bool = False  # may be set while the work goes on
    tokens: int = 0  # drafted so far, and
    seconds: float = 0.0  # what they took

    def work(self, steps: Iterator[None]) -> Work[None]:
        """Take `steps`, one token each, until it is over."""
        began = yield
        while not self.over and next(steps, self) is not self:
            ended = yield
            self.tokens, self.seconds = self.tokens + 1, self.seconds + ended - began
            began = ended

    @property
    def token_s(self) -> float:
        """Mean seconds of a token."""
        return self.seconds / self.tokens if self.tokens else 0.0

    def count_wasted(self, ready: int) -> int:
        """The number of wasted tokens: all except the `ready` ones, which are still proposals, and the bonus token."""
        return max(0, self.tokens - (ready + 1 if ready else 0))


class Drafted(NamedTuple):
    """A block, and how many seconds it took to draft, ahead of time or not; 0 = not told."""

    block: DraftBlock
    seconds: float = 0.0
    reads_on: bool = False  # empty because the drafter has much to read first, and the server waits


class BlockBudget(NamedTuple):
    """How much a block may hold."""

    length: int  # tokens of a chain, or the depth of a tree
    tree: int = 0  # tokens of a tree; 0 = chains only
    hint: int | None = None  # the server's advice: longest useful chain, or depth; None = it gave none
    policy: DraftLengthPolicy | None = None  # of this block alone, instead of the device's own
    awaited: bool = False  # the server waits for the block
    least: int = 0  # tokens of the shortest chain that the acceptance rule makes full use of; 0 = any


class DraftJob:
    """One sequence of one drafter.

    `draft` and `look_ahead` return work for the driver, which does one piece of it after another. The other methods
    may be called while work goes on, from another thread, too: it then ends between two passes.
    """

    def __init__(
        self,
        drafter: Drafter,
        policy: DraftLengthPolicy,
        known: int,
        vocab_size: int = 1 << 31,
        sparse: bool = False,
    ) -> None:
        """`known`: number of tokens of the truth that the drafter gets by `begin`. An id outside [0, `vocab_size`) ends
        a block; with `sparse`, so does a token without the distribution from which it was drawn."""
        self.over = False  # interrupted, or the drafter failed
        self.wasted = 0  # tokens drafted ahead for nothing
        self._drafter, self._policy, self._vocab_size, self._sparse = drafter, policy, vocab_size, sparse
        self._looks_ahead = type(drafter).look_ahead is not Drafter.look_ahead
        self._has_trees = type(drafter).propose_tree is not Drafter.propose_tree
        self._known = known  # tokens of the truth that the drafter has heard of
        # The truth, which grows; the base of the block being drafted, and how far the truth is known to reach
        self._truth: Sequence[int] = ()
        self._base = self._heard = 0
        self._pieces = Pieces()  # of the text that is to be read
        self._reads_on = False  # the latest block is empty because there is much to read
        self._bet: LookAhead | None = None  # on the latest block

    def begin(self, truth: Sequence[int], sampler: Sampler) -> None:
        """Give the drafter the prompt and the tokens after it. The driver calls it in the place where the work runs."""
        if not self.over:
            try:
                self._drafter.begin(truth, sampler)
            except Exception:
                self._fail()

    def draft(self, truth: Sequence[int], budget: BlockBudget) -> Work[Drafted]:
        """The next block, after `truth` as it is now; ends the work ahead.

        A drafter that fails proposes nothing more in this sequence: the user then reads the server's own tokens.
        """
        news, self._known = tuple(truth[self._known :]), len(truth)
        self._end_bet()
        self._truth, self._base, self._heard, self._reads_on = truth, len(truth), len(truth), False
        return self._draft(news, budget)

    def look_ahead(self, block: DraftBlock, budget: BlockBudget) -> Work[None] | None:
        """Work ahead of `block`, which was sent. None = the drafter cannot look ahead, or `block` is a tree: no path of
        a tree is worth a bet."""
        if not self._looks_ahead or block.parents:
            return None
        bet = self._bet = LookAhead(block)
        return self._ahead(bet, budget)

    def hear(self, truth: Sequence[int]) -> None:
        """The truth grew: a block that it contradicts ends, and so does the work ahead of one."""
        self._heard = len(truth)
        if (bet := self._bet) is not None and rebase(bet.block, truth) is None:
            bet.over = True

    def interrupt(self) -> None:
        """The sequence needs no more drafts; all tokens drafted ahead are wasted."""
        self.over = True
        self._drafter.interrupt()
        self._end_bet()
        bet, self._bet = self._bet, None
        if bet is not None:
            self.wasted += bet.tokens

    def _commit(self, news: tuple[int, ...]) -> None:
        """The truth grew by `news`, which may be empty."""
        if news:
            self._drafter.commit(news)

    def _end_bet(self) -> None:
        if self._bet is not None:
            self._bet.over = True

    def _fail(self) -> None:
        log.exception("the drafter failed; this sequence goes on without drafts")
        self.over = True

    def _draft(self, news: tuple[int, ...], budget: BlockBudget) -> Work[Drafted]:
        nodes: list[TreeNode] = []
        seconds = 0.0
        try:
            if not self.over:
                seconds = yield from self._propose(news, budget, nodes)
        except Exception:
            self._fail()
        if not nodes:
            return Drafted(DraftBlock(self._base), seconds, self._reads_on)
        known = list(takewhile(self._is_usable, nodes))
        tokens = tuple([node.token for node in known])
        is_chain = all(node.parent == index - 1 for index, node in enumerate(known))
        parents = () if is_chain else tuple([node.parent for node in known])
        return Drafted(DraftBlock(self._base, tokens, parents), seconds)

    def _is_usable(self, node: TreeNode) -> bool:
        """Whether the target knows the id and, where it must, the distribution it was drawn from."""
        token = node.token
        return 0 <= token.id < self._vocab_size and (not self._sparse or token.drawn_from is not None)

    def _propose(self, news: tuple[int, ...], budget: BlockBudget, nodes: list[TreeNode]) -> Work[float]:
        """Fill `nodes`. Returns the seconds that they took, drafting ahead included."""
        self._commit(news)
        ready, ready_s = self._settle()
        seconds = 0.0
        if self._has_trees and budget.length and not self._sparse:
            seconds += yield from self._tree(budget, nodes)
        if not nodes and not self._reads_on:
            seconds += yield from self._chain(budget, ready, nodes)
        return seconds + min(ready, len(nodes)) * ready_s

    def _catch_up(self, budget: BlockBudget) -> Work[bool]:
        """Let the drafter read the text that it has not read yet, and draft after the truth of that time. False = the
        server waits for the block, and must go on without it."""
        if not self._drafter.lags:
            return True
        if budget.awaited:
            self._reads_on = True
            return False
        began, read, written = (yield), 0, 0
        # A device that hardly reads faster than the server writes drafts all the same: its server learns how slow
        while self._drafter.lags and not self.over and 2 * written <= read:
            self._drafter.read(self._pieces.length)
            read += self._pieces.length
            began = self._pieces.took(began, (yield))
            news = self._since
            if news:
                written += len(news)
                self._base = self._known = self._base + len(news)
                self._commit(news)
        return True

    @property
    def _since(self) -> tuple[int, ...]:
        """The known tokens after the base of the block that is being drafted."""
        return tuple(self._truth[self._base : self._heard])

    def _settle(self) -> tuple[int, float]:
        """After a new truth: the number of tokens that are ready, and the seconds that each of them took."""
        ready = self._drafter.ready
        bet, self._bet = self._bet, None
        if bet is None:
            return ready, 0.0
        self.wasted += bet.count_wasted(ready)
        return ready, bet.token_s

    def _tree(self, budget: BlockBudget, nodes: list[TreeNode]) -> Work[float]:
        """Draft a tree if the policy wants one and the drafter has trees. Returns its seconds."""
        count = (budget.policy or self._policy).nodes(budget.tree, budget.hint)
        if not count or not (yield from self._catch_up(budget)):
            return 0.0
        began = yield
        nodes.extend(islice(self._drafter.propose_tree(), count))
        return (yield) - began

    def _chain(self, budget: BlockBudget, ready: int, nodes: list[TreeNode]) -> Work[float]:
        """Draft a chain until it is long enough, or until the policy or the truth ends it. Returns its seconds."""
        policy = budget.policy or self._policy
        length = policy.most(budget.length, budget.hint)
        if length:
            length = max(length, min(budget.least, budget.length))
        if length > ready:
            if not (yield from self._catch_up(budget)):
                return 0.0
            ready = min(ready, self._drafter.ready)
        tokens = pull_tokens(policy, self._drafter.propose(), length, lambda: self._ends(nodes), budget.least)
        for token in islice(tokens, ready):
            nodes.append(TreeNode(token, len(nodes) - 1))
        if len(nodes) < ready or len(nodes) >= length:
            return 0.0
        began = yield
        for token in tokens:
            yield
            nodes.append(TreeNode(token, len(nodes) - 1))
        return (yield) - began  # a token that the policy threw away took a pass as well

    def _ends(self, nodes: list[TreeNode]) -> bool:
        """Whether the block is not needed: the job is over, or the truth contradicts the block or has passed it."""
        since = self._since
        return self.over or (bool(since) and tuple([node.token.id for node in nodes[: len(since)]]) != since)

    def _ahead(self, bet: LookAhead, budget: BlockBudget) -> Work[None]:
        try:
            length = 0 if self.over else self._policy.most(budget.length, budget.hint)
            if length and self._drafter.behind:
                began = yield
                while not (bet.over or self.over) and self._drafter.read(self._pieces.length):
                    began = self._pieces.took(began, (yield))
            if length:
                yield from bet.work(self._drafter.look_ahead(bet.block.tokens, length))
        except Exception:
            self._fail()
