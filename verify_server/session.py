"""The server's side of one sequence: its reader, the drafts that wait for it, and the verdicts.

Tokens and KV are in sequence.py, drafts and whose turn it is in offers/, times in session_timing.py. Lives on the
server's event loop; only a `StepItem`, what one step computes for the session, travels to the engine's thread. Every
`now` is in seconds on the loop's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from opensled.errors import OpenSledError
from opensled.messages import Draft, Failure, Moved, SamplingParams, TokenLogprobs, Verdict
from opensled.penalties import TokenCounts
from scheduler.plan import SessionView, Slice
from verify_server.acceptance.base import AcceptanceResult, AcceptanceRule, DraftCheck, decided
from verify_server.counters import LoopStats
from verify_server.drafting.base import Proposal
from verify_server.engine.base import Segment
from verify_server.kept.trace import Trace
from verify_server.observer import NOBODY, Observer
from verify_server.offers.checks import check_draft
from verify_server.offers.sources import NO_PARTS, DraftSources, Parts
from verify_server.outbox import Outbox
from verify_server.sequence import Sequence
from verify_server.session_timing import SessionTiming
from verify_server.session_view import view_of
from verify_server.text.guide import Constraint

SessionT = TypeVar("SessionT")  # `Session`, or what a simulation or a test has in its place


class StepItem(NamedTuple, Generic[SessionT]):
    """What one step computes for one session."""

    session: SessionT
    segment: Segment
    check: DraftCheck | None  # None: a chunk of a prompt, nothing to decide
    parts: Parts = NO_PARTS  # what of the drafts that waited is verified
    hint: int | None = None  # goes with the verdict
    ask: int = 0  # tokens that the server's drafter is to draft after the step
    blocks: tuple[int, ...] = ()  # all that the session holds, where the drafter needs them


@dataclass(eq=False, slots=True)
class Session:
    """One sequence that is served to one reader."""

    id: int
    tenant: str
    sequence: Sequence
    params: SamplingParams
    key: bytes
    rule: AcceptanceRule
    sources: DraftSources
    rule_label: str = ""  # its name with all options
    top_logprobs: int | None = None
    constraint: Constraint | None = None  # what a guided answer may go on with; knows all that is committed
    background: bool = False
    trace: Trace | None = None  # None = nothing of it is kept
    timing: SessionTiming = field(default_factory=SessionTiming)
    stats: LoopStats = field(default_factory=LoopStats)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the last tokens: those committed here
    loose: list[int] = field(default_factory=list)  # positions of tokens that its rule let stand
    in_step: bool = False
    closed: bool = False
    failed: bool = False
    leaving: bool = False  # its reader goes on elsewhere
    has_reader: bool = False
    listens: bool = False  # its device sends nothing more, and reads on
    outbox: Outbox = field(default_factory=Outbox)
    observer: Observer = NOBODY
    emitted: TokenCounts | None = field(init=False)  # all that is committed, where its counts are penalized
    _view: SessionView | None = None  # None: something has changed since

    def __post_init__(self) -> None:
        answer = self.sequence.tokens[self.sequence.prompt_length :]
        self.emitted = TokenCounts(answer) if self.params.penalizes else None

    def begin(self, stats: LoopStats, now: float) -> None:
        """It is admitted; `stats`: of the loop that serves it."""
        self.stats = stats
        self.timing.begin(now)
        self.sources.device.begin(now)

    def attach(self, known: int) -> Outbox:
        """A new reader, who holds `known` tokens, takes over: the older stream ends, the server drives again."""
        self.outbox.put(None)
        self.outbox, self._view = Outbox(), None
        self.has_reader, self.listens = True, False
        self.sources.device.reopen()
        if known < len(self.sequence) or self.sequence.finish_reason:
            self._tell(known)
        self.observer.reader_changed()
        return self.outbox

    def detach(self) -> None:
        """The reader is gone: nothing more is computed until one comes back."""
        self.has_reader, self.sources.device.offer, self._view = False, None, None
        self.observer.reader_changed()

    def hand_over(self) -> None:
        """Send the reader elsewhere; what is being computed for it goes out first."""
        self.leaving = True
        if not self.in_step:  # else once more when the step ends
            self.outbox.put(Moved())
            self.detach()

    def submit(self, draft: Draft, now: float) -> bool:
        """Take a draft by the position rules; answers at once when nothing of it needs computing.

        Returns whether it can gain a token or hands the drive back, and takes no other draft's place: devices that keep
        to their turns nearly always send such drafts.
        """
        device = self.sources.device
        if not device.turn.is_new(draft):
            return False
        self._view = None
        check_draft(draft, self.sources.limits, self.sequence.prompt_length, self.rule)
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
        """Answer a late draft, of which nothing can be computed any more, with the truth since `base`."""
        device, stands = self.sources.device, self.sequence.agreed(draft.block)
        if not self.sequence.over:
            self.stats.drop(len(draft.block.tokens))
            device.drop(draft, len(self.sequence), stands, now)
        device.turn.verdict(draft.counter, None)
        self._tell(base, draft.counter, stands)

    def _tell(self, base: int, answers: int = 0, num_accepted: int = 0) -> None:
        """Send all that is known from `base` on, or else from the first token that is not confirmed; `answers`: the
        counter of a draft of which `num_accepted` tokens stand."""
        sequence, truth, loose = self.sequence, self.sequence.truth, self.loose
        base = min(base, truth.confirmed)
        news, vetted = truth.confirmed - base, len(truth.tokens) - truth.confirmed
        self.outbox.put(
            Verdict(
                base=base,
                tokens=tuple(truth.tokens[base:]),
                num_accepted=num_accepted,
                answers=answers,
                finish_reason="" if vetted else truth.finish_reason,
                hint=self.sources.device.turn.hint,
                logprobs=tuple(self.logprobs[-news:]) if news and self.logprobs else (),
                loose=tuple([position - base for position in loose if position >= base]) if loose else (),
                vetted=vetted,
                unverified=min(news, sequence.unverified),
                revision=truth.rewinds,
            )
        )

    def _tell_prefill(self) -> None:
        """Send how far its text is computed, and what that says of its prompt's tokens, if asked for.

        Where another server confirms the text, its reader waits for that one.
        """
        if self.sequence.ahead is None:
            prefill, scores = self.sequence.prefill, self.sequence.scores
            self.outbox.put_prefill(prefill if scores is None else scores.add_to(prefill))

    def retell(self, base: int, now: float) -> None:
        """Its text was changed from outside, or confirmed, behind the first `base` tokens: its reader hears of it."""
        self._view = None
        if self.emitted is not None:
            self.emitted = TokenCounts(self.sequence.tokens[self.sequence.prompt_length :])
        if not self._rebase_waiting(base, now):
            self._tell(base)

    def run_ahead(self, most: int) -> None:
        """From now on `most` tokens may be decided before they are confirmed."""
        self.sequence.ahead, self._view = most, None

    @property
    def server_drives(self) -> bool:
        """Whether it is decoded unasked, as no draft is expected."""
        return self.listens or self.sources.device.turn.server_drives

    @property
    def awaits_draft(self) -> bool:
        """Whether its device is at work on one."""
        return self.has_reader and not self.listens and self.sources.device.turn.awaits_draft

    @property
    def rests(self) -> bool:
        """Whether nothing can be done for it right now: no reader, a slow one, or a device at work."""
        offer = self.sources.device.offer
        return not self.has_reader or self.awaits_draft or (offer is None and self.outbox.full)

    def view(self, now: float) -> SessionView:
        """What a policy sees of it; made anew only when something has changed, for most sessions of a plan rest."""
        if (view := self._view) is None or view.paused != self.outbox.full:
            view = view_of(self, now)
            quota = self.sources.device.budget.quota
            self._view = view if quota is None else None  # what is left of it changes with time
        return view

    def listen(self) -> None:
        """No more drafts come from its device, which reads on."""
        self.listens, self._view = True, None

    def forget_kv(self) -> None:
        """See `Sequence.forget_kv`."""
        self.sequence.forget_kv()
        self._view = None

    def adopt_kv(self) -> None:
        """See `Sequence.adopt_kv`."""
        if self.sequence.adopt_kv():
            self._tell_prefill()
        self._view = None

    def take_own(self, proposal: Proposal, asked: int) -> None:
        """The server has drafted for it; see `ServerDrafts.take`."""
        if self.sources.server is not None:
            self.sources.server.take(proposal, asked, len(self.sequence))
            self._view = None

    def plan(self, piece: Slice, now: float) -> StepItem:
        """Turn a slice into work for the engine; OutOfBlocks changes nothing."""
        self._view = None
        length, sources = len(self.sequence), self.sources
        parts = sources.cut(piece, self.sequence, now) if piece.decide else NO_PARTS
        block = parts.block
        segment = self.sequence.segment(piece, block)
        check = hint = None
        ask: tuple[int, tuple[int, ...]] = (0, ())
        if piece.decide:
            check = DraftCheck(
                block.tokens,
                length,
                self.params,
                self.key,
                self.top_logprobs,
                parents=block.parents,
                emitted=self.emitted.along(block.ids, block.parents) if self.emitted is not None else None,
                ends=self.sequence.ends.ids,
            )
            hint = sources.spend(parts, piece.hint, length, now)
            ask = sources.ask(piece.ask, self.sequence, len(block.tokens), now)
        elif not self.sequence.computed:  # what is found, and what a chunk brings, is told by itself
            self._tell_prefill()
        self.in_step = True
        return StepItem(self, segment, check, parts, hint, *ask)

    def commit(self, item: StepItem, result: AcceptanceResult | None, now: float) -> int:
        """Apply a step; returns how many tokens it committed."""
        self.in_step, self._view = False, None
        if item.check is None:
            self.sequence.advance(item.segment)
            self._tell_prefill()
            return 0
        if result is None:
            self._decide_again(item, now)
            return 0
        if self.sequence.scores is not None and self.sequence.scores.has_news:
            self._tell_prefill()
        base, draft, ids = len(self.sequence), item.parts.draft, decided(item.check, result)
        news = self.sequence.commit(ids, result.num_accepted)
        if result.loose:
            loose = [base + index for index in result.loose if index < len(news)]
            self.loose, self.stats.loose = self.loose + loose, self.stats.loose + len(loose)
        self.logprobs.extend(result.logprobs[: len(news)])
        if self.constraint is not None:
            self.constraint.commit(news)
        if self.emitted is not None:
            self.emitted.add(news)
        known = base - draft.block.base if draft else 0  # its head, which proved right before
        stands, own = self.sources.judge(item.parts, ids, known, len(news)), item.parts.server.verified
        if own.tokens:
            self.stats.own.add(len(own.tokens), stands)
        self.timing.left(len(self.sequence), now)
        self.sources.device.answer(draft, item.hint, len(self.sequence), now)
        if draft is None:
            self._tell(base)
            self.stats.commit(len(news), item.hint)
        else:
            stands = self.sequence.agreed(draft.block)
            self._tell(draft.block.base, draft.counter, stands)
            self.stats.commit(len(news), item.hint, len(draft.block.tokens), stands - known)
        self._rebase_waiting(len(self.sequence), now)
        return len(news)

    def _decide_again(self, item: StepItem, now: float) -> None:
        """Nothing was decided: all that the step computed is computed again, without a draft."""
        self.sequence.rewind(item.segment.start)
        self.sources.device.hold_again(item.parts.device, len(self.sequence), now)

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

    def fail(self, error: OpenSledError) -> None:
        """This session ends by an error; its reader is told, no other session notices."""
        self.failed = True
        self.outbox.put(Failure.of(error))
