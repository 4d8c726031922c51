"""The server's side of one sequence: its waiting drafts and its verdicts.

Tokens and KV are in sequence.py, drafts and the turn in sources.py, the queue to the reader in outbox.py, times in
session_timing.py, optional traits in riders/. A session lives on the server's event loop; only a `StepItem`, the work
of one step for the session, goes to the engine's thread. Every `now` is in seconds on the loop's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from opensled.core.errors import OpenSledError
from opensled.core.messages import Draft, DraftBlock, Failure, Moved, Prefill, Verdict
from scheduler.plan import SessionView, Slice
from verify_server.engine.base import Segment
from verify_server.round.checks import check_draft
from verify_server.round.counters import LoopStats
from verify_server.round.drafter import Proposal
from verify_server.round.observer import NOBODY, Observer
from verify_server.round.outbox import Outbox, Reader
from verify_server.round.rider import Message, Rider
from verify_server.round.sequence import Sequence
from verify_server.round.session_timing import SessionTiming
from verify_server.round.session_view import view_of
from verify_server.round.sources import NO_DRAFTS, DraftSources
from verify_server.round.step_item import StepItem
from verify_server.round.terms import Terms
from verify_server.rules.base import AcceptanceResult, DraftCheck, Reading, decided_ids
from verify_server.rules.decide import StepResult


@dataclass(eq=False, slots=True)
class Session:
    """One sequence that is served to one reader."""

    id: int
    tenant: str
    sequence: Sequence
    terms: Terms
    sources: DraftSources
    riders: tuple[Rider, ...] = ()  # its optional traits
    timing: SessionTiming = field(default_factory=SessionTiming)
    stats: LoopStats = field(default_factory=LoopStats)
    in_step: bool = False
    closed: bool = False
    failed: bool = False
    observer: Observer = NOBODY
    reader: Reader = field(default_factory=Reader)
    _view: SessionView | None = None  # None: something has changed since

    def begin(self, stats: LoopStats, now: float) -> None:
        """It is admitted; `stats`: of the loop that serves it."""
        self.stats = stats
        self.timing.begin(now)
        self.sources.device.begin(now)

    def attach(self, known: int) -> Outbox:
        """A new reader, which has `known` tokens, takes over: the older stream ends, and the server drives again."""
        self.reader.attach()
        self.sources.device.reopen()
        self._view = None
        if known < len(self.sequence) or self.sequence.finish_reason:
            self._tell(known)
        self.observer.reader_changed()
        return self.outbox

    def detach(self) -> None:
        """The reader is gone: nothing more is computed until one comes back."""
        self.reader.present, self.sources.device.offer, self._view = False, None, None
        self.observer.reader_changed()

    def hand_over(self) -> None:
        """Send the reader to another server, after the result of a step that is being computed."""
        self.reader.leaving = True
        if not self.in_step:  # else once more when the step ends
            self.outbox.put(Moved())
            self.detach()

    def submit(self, draft: Draft, now: float) -> bool:
        """Take a draft by the position rules; answer it at once if none of it needs computing.

        Returns whether it can gain a token or hands the drive back, and does not replace another draft: devices that
        keep their turns nearly always send such drafts.
        """
        device = self.sources.device
        if not device.turn.is_new(draft):
            return False
        self._view = None
        check_draft(draft, self.sources.limits, self.sequence.prompt_length, self.terms.rule)
        draft = replace(draft, block=device.arrange(draft.block)) if draft.block.parents else draft
        block, rest = draft.block, self.sequence.rebase(draft.block)
        gains = bool(block.tokens) or not device.turn.server_drives
        replaces = device.offer is not None
        device.receive(draft, now)
        if self.sequence.over or rest is None:
            self._drop(draft, block.base, now)
            return False
        if block.tokens:
            device.hold(rest, now, draft)
        return gains and not replaces

    def _drop(self, draft: Draft, base: int, now: float) -> None:
        """Answer a late draft, which cannot be verified any more, with the truth since `base`."""
        device, stands = self.sources.device, self.sequence.count_agreed(draft.block)
        if not self.sequence.over:
            self.stats.drop(len(draft.block.tokens))
            device.drop(draft, len(self.sequence), stands, now)
        device.turn.verdict(draft.counter, None)
        self._tell(base, draft.counter, stands)

    def _tell(self, base: int, answers: int = 0, num_accepted: int = 0) -> None:
        """Send all known tokens from `base` on, or from the first unconfirmed one if that is earlier; `answers`: the
        counter of a draft with `num_accepted` accepted tokens."""
        sequence, truth = self.sequence, self.sequence.truth
        base = min(base, truth.confirmed)
        news, vetted = truth.confirmed - base, len(truth.tokens) - truth.confirmed
        verdict = Verdict(
            base=base,
            tokens=tuple(truth.tokens[base:]),
            num_accepted=num_accepted,
            answers=answers,
            finish_reason="" if vetted else truth.finish_reason,
            hint=self.sources.device.turn.hint,
            vetted=vetted,
            unverified=min(news, sequence.unverified),
            revision=truth.rewinds,
            why=self.sources.device.news(),
        )
        self.reader.outbox.put(self.complete(verdict) if self.riders else verdict)

    def complete(self, message: Message) -> Message:
        """A message that leaves, with what its riders have to say by it."""
        for rider in self.riders:
            message = rider.tell(message)
        return message

    def tell_prefill(self, before: Prefill | None = None) -> None:
        """Send how far its text is computed; `before`: it was so far, and that is sent only if riders have news.

        Where another server confirms the text, its reader waits for that one.
        """
        if self.sequence.ahead is None:
            told = self.complete(before or self.sequence.prefill)
            if told is not before:
                self.outbox.put_prefill(told)

    def retell(self, base: int, now: float) -> None:
        """Its text was changed from outside, or confirmed, behind the first `base` tokens: its reader hears of it."""
        self._view = None
        for rider in self.riders:
            rider.rewound(self.sequence.tokens)
        if not self._rebase_waiting(base, now):
            self._tell(base)

    def run_ahead(self, most: int) -> None:
        """From now on `most` tokens may be decided before they are confirmed."""
        self.sequence.ahead, self._view = most, None

    @property
    def outbox(self) -> Outbox:
        """The messages to its reader."""
        return self.reader.outbox

    @property
    def has_reader(self) -> bool:
        """Whether somebody reads it."""
        return self.reader.present

    @property
    def server_drives(self) -> bool:
        """Whether it is decoded unasked, as no draft is expected."""
        return self.reader.listens or self.sources.device.turn.server_drives

    @property
    def awaits_draft(self) -> bool:
        """Whether its device is at work on one."""
        reader = self.reader
        return reader.present and not reader.listens and self.sources.device.turn.awaits_draft

    @property
    def rests(self) -> bool:
        """Whether nothing can be done for it right now: no reader, a slow one, or a device at work."""
        offer = self.sources.device.offer
        reader = self.reader
        return not reader.present or self.awaits_draft or (offer is None and reader.outbox.full)

    def view(self, now: float) -> SessionView:
        """What a policy sees of it; made anew only when something has changed, for most sessions of a plan rest."""
        if (view := self._view) is None or view.paused != self.reader.outbox.full:
            view = view_of(self, now)
            quota = self.sources.device.budget.quota
            self._view = view if quota is None else None  # what is left of it changes with time
        return view

    def listen(self) -> None:
        """No more drafts come from its device, which reads on."""
        self.reader.listens, self._view = True, None

    def forget_kv(self) -> None:
        """See `Sequence.forget_kv`."""
        self.sequence.forget_kv()
        self._view = None

    def adopt_kv(self) -> None:
        """See `Sequence.adopt_kv`."""
        reusable = self.sequence.confirmed
        for rider in self.riders:
            reusable = rider.reusable(reusable)
        if self.sequence.adopt_kv(reusable):
            self.tell_prefill()
        self._view = None

    def take_own(self, drafter: int, proposal: Proposal, asked: int) -> None:
        """A drafter of the server has drafted for it; see `ServerDrafts.take`."""
        self.sources.servers[drafter].take(proposal, asked)
        self._view = None

    def limit_slice(self, piece: Slice) -> Slice:
        """`piece`, or a shorter chunk; see `Rider`."""
        for rider in self.riders:
            piece = rider.limit_slice(piece, self.sequence.computed)
        return piece

    def plan(self, piece: Slice, now: float) -> StepItem:
        """Turn a slice into work for the engine; OutOfBlocks changes nothing."""
        self._view = None
        length, sources, terms = len(self.sequence), self.sources, self.terms
        drafts = sources.cut(piece, self.sequence, now) if piece.decide else NO_DRAFTS
        block = drafts.block
        segment, reads = self._segment(piece, block)
        check, hint, ask = None, None, 0
        if piece.decide:
            ends = self.sequence.ends.ids
            check = DraftCheck(
                block.tokens, length, terms.params, terms.key, parents=block.parents, ends=ends
            )
            hint = sources.spend(drafts, piece, length, now)
            ask = sources.ask(piece.ask, piece.drafter, self.sequence, now)
        elif not self.sequence.computed:  # what is found, and what a chunk brings, is told by itself
            self.tell_prefill()
        self.in_step = True
        return StepItem(self, segment, check, drafts, hint, ask, piece.drafter, reads)

    def _segment(self, piece: Slice, block: DraftBlock) -> tuple[Segment, tuple[Reading, ...]]:
        """What a step computes, with all that riders want of it."""
        segment = self.sequence.segment(piece, block)
        reads: tuple[Reading, ...] = ()
        stop = self.sequence.computed + piece.tokens
        for rider in self.riders:
            segment = rider.segment(segment, stop)
            reads += rider.reads(segment.start, stop, piece.decide)
        return segment, reads

    def commit(self, item: StepItem, outcome: StepResult | None, now: float) -> int:
        """Apply a step; returns how many tokens it committed."""
        self.in_step, self._view = False, None
        if item.check is None:
            self._advance(item, outcome)
            return 0
        if outcome is None:
            self._decide_again(item, now)
            return 0
        assert isinstance(outcome, AcceptanceResult), "a step with a check decides"
        return self._apply(item, item.check, outcome, now)

    def _advance(self, item: StepItem, outcome: StepResult | None) -> None:
        """A chunk of its prompt is computed."""
        self.sequence.advance(item.segment)
        if outcome is not None:
            for rider in self.riders:
                rider.committed(len(self.sequence), (), outcome)
        self.tell_prefill()

    def _apply(self, item: StepItem, check: DraftCheck, result: AcceptanceResult, now: float) -> int:
        """A decision; returns how many tokens are committed by it."""
        base, draft, ids = len(self.sequence), item.drafts.device.draft, decided_ids(check, result)
        before = self.sequence.prefill if self.riders else None
        news = self.sequence.commit(ids, result.num_accepted)
        if before is not None:
            for rider in self.riders:
                rider.committed(base, news, result)
            self.tell_prefill(before)
        count = len(news)
        length = base + count
        known = base - draft.block.base if draft else 0  # its head, which proved right before
        stands, own = self.sources.judge(item.drafts, ids, known, count), item.drafts.server.verified
        if own.tokens:
            self.stats.own.add(len(own.tokens), stands)
        self.timing.add_verdict(length, now)
        self.sources.device.answer(draft, item.hint, length, now)
        if draft is None:
            self._tell(base)
            self.stats.commit(count, item.hint)
        else:
            stands = self.sequence.count_agreed(draft.block)
            self._tell(draft.block.base, draft.counter, stands)
            self.stats.commit(count, item.hint, len(draft.block.tokens), stands - known)
        self._rebase_waiting(length, now)
        return count

    def _decide_again(self, item: StepItem, now: float) -> None:
        """Nothing was decided: all that the step computed is computed again, without a draft."""
        self.sequence.rewind(item.segment.start)
        self.sources.device.hold_again(item.drafts.device, len(self.sequence), now)

    def _rebase_waiting(self, known: int, now: float) -> bool:
        """A draft that arrived before the end of the step meets the new truth, of which its reader knows the first
        `known` tokens to be final. Returns whether it is answered by that."""
        device = self.sources.device
        waiting, device.offer = device.offer, None
        if waiting is None or waiting.draft is None:
            return False
        rest = self.sequence.rebase(waiting.draft.block)
        if self.sequence.over or rest is None:
            self._drop(waiting.draft, min(known, waiting.draft.block.base), now)
            return True
        device.hold(rest, waiting.since, waiting.draft)
        return False

    def end(self) -> None:
        """No step computes it any more."""
        for rider in self.riders:
            rider.ended(self.sequence.tokens)

    def fail(self, error: OpenSledError) -> None:
        """This session ends by an error; its reader is told, no other session notices."""
        self.failed = True
        self.outbox.put(Failure.of(error))
