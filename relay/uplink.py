"""The way up for one sequence: vetted tokens leave as draft blocks, and what the target commits comes back.

The edge loop of a device does the rest (`round.generate`): to the server above, a relay is a device whose drafter
is its own target.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from edge_client.link.remote import Connect, RemoteSession, RetryPolicy
from edge_client.offline.modes import STALL, Offline
from edge_client.offline.watching import watch_commits
from edge_client.round.commits import Commit
from edge_client.round.draft_job import BlockBudget, Drafted
from edge_client.round.generate import generate
from opensled.core.errors import OpenSledError, ProtocolError, Unreachable
from opensled.core.messages import DraftBlock, DraftToken, Prefill, SamplingParams
from opensled.core.protocol import Truth
from opensled.core.sampling import Sampler
from relay.vetting import Vetting
from verify_server.round.loop import VerifyLoop
from verify_server.round.observer import Observer
from verify_server.round.session import Session
from verify_server.rules.decide import StepResult

log = logging.getLogger(__name__)

AHEAD = 2  # blocks that a session runs ahead of the target: one is judged above, the next one grows


@dataclass(frozen=True)
class Upstream:
    """The server above, and how vetted tokens go there."""

    connect: Connect
    device: str = ""  # this relay's name there
    block: int = 8  # tokens of a block, if the server above takes so many
    bound: float = 0.4  # chance that a whole block stands, below which it leaves before it is full
    patience: RetryPolicy = field(default_factory=RetryPolicy)
    offline: Offline = field(default_factory=Offline)  # what a session does while it is away

    @property
    def ahead(self) -> int:
        """Tokens that a session runs ahead of the target."""
        return AHEAD * (self.block + 1)

    def ahead_of(self, away: bool) -> int:
        """The same, where the server above may be `away`."""
        return max(self.ahead, self.offline.most) if away and self.offline.mode != STALL else self.ahead


class VettedBlocks:
    """A `Drafting` of what a relay has vetted.

    A block leaves when it is as long as the server above wants it, when the chance that all of it stands falls below
    `bound`, or when no token can follow it.
    """

    wasted = 0  # what is taken back is counted where it was drafted

    def __init__(
        self,
        vetting: Vetting,
        length: int,
        bound: float,
        future: Callable[[], asyncio.Future[Drafted]] = asyncio.Future,
    ) -> None:
        """`future`: makes what holds a block once there is one."""
        self._vetting, self._bound, self._future = vetting, bound, future
        self._length = length
        self._next: tuple[asyncio.Future[Drafted], Truth, BlockBudget] | None = None

    def begin(self, truth: Truth, sampler: Sampler) -> None:
        """See `Drafting`; the session has begun already."""

    def draft(self, truth: Truth, budget: BlockBudget) -> asyncio.Future[Drafted]:
        """See `Drafting`; done once there is such a block."""
        future = self._future()
        self._next = (future, truth, budget)
        self.look()
        return future

    def look_ahead(self, block: DraftBlock, budget: BlockBudget) -> None:
        """See `Drafting`; the session vets on meanwhile."""

    def hear(self, truth: Truth) -> None:
        """See `Drafting`; the uplink tells the session."""

    def interrupt(self) -> None:
        """See `Drafting`."""
        self._next = None

    def look(self) -> None:
        """There may be a block now."""
        if self._next is None:
            return
        future, truth, budget = self._next
        if not self._is_applied(truth):
            return  # what was heard last is not applied yet
        block = self._block(len(truth), budget)
        if block is not None:
            self._next = None
            future.set_result(Drafted(block))

    def _is_applied(self, truth: Truth) -> bool:
        sequence, known = self._vetting.session.sequence, truth.confirmed
        return sequence.confirmed == known and sequence.tokens[known : len(truth)] == truth.tokens[known:]

    def _block(self, base: int, budget: BlockBudget) -> DraftBlock | None:
        """The block at `base`; None = it is to grow."""
        vetting, sequence = self._vetting, self._vetting.session.sequence
        most = min(self._length, budget.length)
        if budget.hint is not None:
            most = min(most, budget.hint)
        if most <= 0:
            return DraftBlock(base)
        start, survival = base - sequence.confirmed, vetting.survival
        ids, agreed = sequence.truth.vetted[start:], vetting.agreed[start:]
        if not ids:
            return None
        grows = len(ids) < most and not sequence.waits
        if grows and survival.of_all(agreed) >= self._bound:
            return None
        tokens = zip(ids[:most], agreed)
        return DraftBlock(base, tuple([DraftToken(id, survival.chance(each)) for id, each in tokens]))


class Uplink(Observer):
    """One sequence between a relay's session and the server above."""

    over: asyncio.Task[None]  # done when the server above has heard the last of it

    def __init__(
        self,
        loop: VerifyLoop,
        vetting: Vetting,
        remote: RemoteSession,
        upstream: Upstream,
        can_go_alone: bool,
    ) -> None:
        """`remote`: open. `can_go_alone`: whether the relay's own words may follow where the target is gone."""
        self._loop, self._vetting, self._remote = loop, vetting, remote
        self._upstream, self._can_go_alone = upstream, can_go_alone
        self._blocks = VettedBlocks(vetting, upstream.block, upstream.bound)
        self._read, self._left = asyncio.Event(), False
        self._session = vetting.session
        self._session.run_ahead(upstream.ahead)
        self._session.observer = self
        remote.hear_prefill = self._pass_on

    def begin(self, params: SamplingParams) -> asyncio.Task[None]:
        """Go on until the end of the sequence is confirmed, or the session is forgotten."""
        self.over = asyncio.ensure_future(self._run(params))
        self.over.add_done_callback(_tell_bugs)
        return self.over

    def leave(self) -> None:
        """Nobody wants to know how the sequence goes on; whoever is above is told so, once."""
        if not self._left:
            self._left = True
            self.over.cancel()

    def reader_changed(self) -> None:
        """See `Observer`; without a reader the relay does not listen to the server above."""
        if self._session.has_reader:
            self._read.set()
        else:
            self._read.clear()

    def committed(self, tokens: int, result: StepResult | None, now: float) -> None:
        """See `Observer`."""
        self._vetting.committed(tokens, result, now)
        self._blocks.look()

    def forgotten(self) -> None:
        """See `Observer`."""
        self.leave()

    def _pass_on(self, prefill: Prefill) -> None:
        """The reader hears how far the target has read the text."""
        self._session.outbox.put_prefill(prefill)

    async def _run(self, params: SamplingParams) -> None:
        """An error above is an error of the session."""
        try:
            commits = generate(self._remote, self._blocks, params)
            async with (
                aclosing(commits),
                aclosing(watch_commits(commits, self._remote, self._upstream.offline)) as events,
            ):
                async for event in events:
                    self._hear(event)
                    await self._read.wait()
        except Unreachable as error:
            if self._can_go_alone:
                log.warning("%s; this relay's model goes on alone", error)
                go_alone(self._loop, self._vetting)
            else:
                self._fail(error)
        except OpenSledError as error:
            self._fail(error)

    def _hear(self, event: Commit | Prefill | float) -> None:
        """What the target has committed, that it reads, or for how many seconds the server above is away."""
        session = self._session
        session.run_ahead(self._upstream.ahead_of(away=isinstance(event, float)))
        if isinstance(event, Commit):
            truth = self._remote.truth
            self._check((*event.tokens, *truth.vetted), truth)
            self._vetting.hear(event, self._loop.clock(), truth.vetted, truth.finish_reason)
        end_if_over(self._loop, session)
        self._loop.wake()
        self._blocks.look()

    def _check(self, news: tuple[int, ...], truth: Truth) -> None:
        """Raises ProtocolError for what this relay's model cannot read."""
        most, room = self._loop.machine.target.facts.vocab_size, self._session.sequence.ends.last_length
        if not all(id < most for id in news):
            raise ProtocolError(f"the upstream server sends ids beyond the {most} of this relay's model")
        if len(truth) > room:
            raise ProtocolError(
                f"the upstream server sent more than the {room} tokens that this relay has room for"
            )

    def _fail(self, error: OpenSledError) -> None:
        self._loop.remove(self._session)
        self._session.fail(error)


def go_alone(loop: VerifyLoop, vetting: Vetting) -> None:
    """From now on the relay's own model decides, as its reader takes words that no target verifies."""
    vetting.go_alone(loop.clock())
    end_if_over(loop, vetting.session)
    loop.wake()


def end_if_over(loop: VerifyLoop, session: Session) -> None:
    """Nothing is computed any more for a session whose end is final."""
    if session.sequence.over:
        loop.remove(session)


def _tell_bugs(task: asyncio.Task[None]) -> None:
    """An error that is no OpenSledError is a bug of ours: let the event loop report it."""
    if not task.cancelled():
        task.result()
