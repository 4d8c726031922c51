"""The server's side of one sequence: its reader, its turn, the pending draft, and the verdicts.

Tokens and KV are in sequence.py, who drives in opensled/turns.py, times in session_timing.py. Lives on the server's
event loop; only a `StepItem`, what one step computes for the session, travels to the engine's thread. Every `now` is in
seconds on the loop's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from opensled.errors import OpenSledError
from opensled.messages import Draft, DraftBlock, Failure, Moved, SamplingParams, TokenLogprobs, Verdict
from opensled.penalties import TokenCounts
from opensled.protocol import agreed
from opensled.turns import Turn
from scheduler.plan import SessionView, Slice
from verify_server.acceptance.base import AcceptanceResult, AcceptanceRule, DraftCheck, decided
from verify_server.counters import LoopStats
from verify_server.draft_budget import DraftBudget
from verify_server.drafting.base import Proposal
from verify_server.engine.base import Segment
from verify_server.kept.trace import Trace
from verify_server.observer import NOBODY, Observer
from verify_server.outbox import Outbox
from verify_server.own_draft import NO_DRAFT, OwnDraft
from verify_server.pending_draft import DraftLimits, PendingDraft, check_draft, verified
from verify_server.sequence import Sequence
from verify_server.session_timing import SessionTiming
from verify_server.session_view import view_of
from verify_server.text.guide import Constraint
from verify_server.trees import confidences, depth, likeliest_first, seen_of, together, tried, without_twins

SessionT = TypeVar("SessionT")  # `Session`, or what a simulation or a test has in its place


class StepItem(NamedTuple, Generic[SessionT]):
    """What one step computes for one session."""

    session: SessionT
    segment: Segment
    check: DraftCheck | None  # None: a chunk of a prompt, nothing to decide
    draft: Draft | None  # the draft this step answers
    hint: int | None = None  # goes with the verdict
    rest: DraftBlock = NO_DRAFT  # what its device drafted beyond the text,
    drafted: DraftBlock = NO_DRAFT  # what of that is verified,
    own: DraftBlock = NO_DRAFT  # and what of the server's own one
    ask: int = 0  # tokens that the server's drafter is to draft after the step
    blocks: tuple[int, ...] = ()  # all that the session holds, where the drafter needs them
    since: float = 0.0  # when the draft came


@dataclass(eq=False, slots=True)
class Session:
    """One sequence that is served to one reader."""

    id: int
    tenant: str
    sequence: Sequence
    params: SamplingParams
    key: bytes
    rule: AcceptanceRule
    limits: DraftLimits
    rule_label: str = ""  # its name with all options
    top_logprobs: int | None = None
    constraint: Constraint | None = None  # what a guided answer may go on with; knows all that is committed
    background: bool = False
    budget: DraftBudget = field(default_factory=DraftBudget)  # what of its device's drafts is verified
    trace: Trace | None = None  # None = nothing of it is kept
    own: OwnDraft | None = None  # None = no drafter of the server drafts for it
    timing: SessionTiming = field(default_factory=SessionTiming)
    stats: LoopStats = field(default_factory=LoopStats)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the last tokens: those committed here
    loose: list[int] = field(default_factory=list)  # positions of tokens that its rule let stand
    pending: PendingDraft | None = None
    in_step: bool = False
    closed: bool = False
    failed: bool = False
    leaving: bool = False  # its reader goes on elsewhere
    has_reader: bool = False
    listens: bool = False  # its device sends nothing more, and reads on
    outbox: Outbox = field(default_factory=Outbox)
    observer: Observer = NOBODY
    turn: Turn = field(init=False)
    emitted: TokenCounts | None = field(init=False)  # all that is committed, where its counts are penalized
    _view: SessionView | None = None  # None: something has changed since

    def __post_init__(self) -> None:
        self.turn = Turn(self.timing.estimate.device.hint)
        answer = self.sequence.tokens[self.sequence.prompt_length :]
        self.emitted = TokenCounts(answer) if self.params.penalizes else None

    def attach(self, known: int) -> Outbox:
        """A new reader, who holds `known` tokens, takes over: the older stream ends, the server drives again."""
        self.outbox.put(None)
        self.outbox, self._view = Outbox(), None
        self.has_reader, self.pending, self.listens = True, None, False
        self.turn.reopened(self.turn.hint)
        self.timing.reopened()
        if known < len(self.sequence) or self.sequence.finish_reason:
            self._tell(known)
        self.observer.reader_changed()
        return self.outbox

    def detach(self) -> None:
        """The reader is gone: nothing more is computed until one comes back."""
        self.has_reader, self.pending, self._view = False, None, None
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
        if not self.turn.is_new(draft):
            return False
        self._view = None
        check_draft(draft, self.limits, self.sequence.prompt_length, self.rule)
        if draft.block.parents:
            tree = without_twins(draft.block)
            draft = replace(draft, block=likeliest_first(tree, self._reach(tree)))
        block, rest = draft.block, self.sequence.rebase(draft.block)
        useful = bool(block.tokens) or not self.turn.server_drives
        self.turn.draft(draft)
        self.timing.arrived(block.base, depth(block.tokens, block.parents), draft.seconds, now)
        replaces, self.pending = self.pending is not None, None
        if self.sequence.over or rest is None:
            self._drop(draft, block.base, now)
            return False
        if block.tokens:
            self.pending = self._pending(draft, rest, now)
        return useful and not replaces

    def _pending(self, draft: Draft, rest: DraftBlock, since: float) -> PendingDraft:
        return PendingDraft(draft, rest, since, self._reach(rest))

    def _reach(self, block: DraftBlock) -> tuple[float, ...]:
        return self.timing.estimate.reach(confidences(block), block.parents)

    def _drop(self, draft: Draft, base: int, now: float) -> None:
        """Answer a late draft, of which nothing can be computed any more, with the truth since `base`."""
        block, stands = draft.block, self.sequence.agreed(draft.block)
        if not self.sequence.over:
            self.stats.drop(len(block.tokens))
            self.timing.asked(len(self.sequence), now)
            known = max(0, min(depth(block.tokens, block.parents), len(self.sequence) - block.base))
            self.timing.estimate.judged(known, stands)
        self.turn.verdict(draft.counter, None)
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
                hint=self.turn.hint,
                logprobs=tuple(self.logprobs[-news:]) if news and self.logprobs else (),
                loose=tuple([position - base for position in loose if position >= base]) if loose else (),
                vetted=vetted,
                unverified=min(news, sequence.unverified),
                revision=truth.rewinds,
            )
        )

    def tell_prefill(self) -> None:
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
        if not self._rebase_pending(base, now):
            self._tell(base)

    def run_ahead(self, most: int) -> None:
        """From now on `most` tokens may be decided before they are confirmed."""
        self.sequence.ahead, self._view = most, None

    @property
    def server_drives(self) -> bool:
        """Whether it is decoded unasked, as no draft is expected."""
        return self.listens or self.turn.server_drives

    @property
    def awaits_draft(self) -> bool:
        """Whether its device is at work on one."""
        return self.has_reader and not self.listens and self.turn.awaits_draft

    @property
    def rests(self) -> bool:
        """Whether nothing can be done for it right now: no reader, a slow one, or a device at work."""
        return not self.has_reader or self.awaits_draft or (self.pending is None and self.outbox.full)

    def view(self, now: float) -> SessionView:
        """What a policy sees of it; made anew only when something has changed, for most sessions of a plan rest."""
        if (view := self._view) is None or view.paused != self.outbox.full:
            view = view_of(self, now)
            self._view = view if self.budget.quota is None else None  # what is left of it changes with time
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
            self.tell_prefill()
        self._view = None

    def take_own(self, proposal: Proposal, asked: int) -> None:
        """The server has drafted for it; see `OwnDraft.take`."""
        if self.own is not None:
            self.own.take(proposal, asked, len(self.sequence))
            self._view = None

    def plan(self, piece: Slice, now: float) -> StepItem:
        """Turn a slice into work for the engine; OutOfBlocks changes nothing."""
        self._view = None
        pending = self.pending if piece.decide else None
        length = len(self.sequence)
        longest = self.budget.longest(self.limits.max_draft, length, now)
        drafted = own = NO_DRAFT
        takes_drafts = self.constraint is None or self.constraint.takes_drafts
        if pending and takes_drafts:
            drafted = verified(pending.rest, piece.draft, self.limits, self.budget, self.sequence, now)
        if self.own is not None and piece.decide and takes_drafts:
            own = self.own.verified(piece.own, drafted, self.sequence, self.limits)
        block = together(drafted, own)
        segment = self.sequence.segment(piece, block)
        check = hint = None
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
            self.pending = None
            self.budget.take(len(drafted.tokens), length, now)
            hint = self.budget.hint(piece.hint, longest)
        elif not self.sequence.computed:  # what is found, and what a chunk brings, is told by itself
            self.tell_prefill()
        self.in_step = True
        draft, rest = (pending.draft, pending.rest) if pending else (None, NO_DRAFT)
        ask = piece.ask if piece.decide and self.own is not None else 0
        covered = length + len(block.tokens) + ask
        blocks = self.own.blocks(covered, self.sequence.memory) if ask and self.own is not None else ()
        since = pending.since if pending else now
        return StepItem(self, segment, check, draft, hint, rest, drafted, own, ask, blocks, since)

    def commit(self, item: StepItem, result: AcceptanceResult | None, now: float) -> int:
        """Apply a step; returns how many tokens it committed."""
        self.in_step, self._view = False, None
        if item.check is None:
            self.sequence.advance(item.segment)
            self.tell_prefill()
            return 0
        if result is None:
            self._decide_again(item, now)
            return 0
        if self.sequence.scores is not None and self.sequence.scores.has_news:
            self.tell_prefill()
        base, draft, ids = len(self.sequence), item.draft, decided(item.check, result)
        news = self.sequence.commit(ids, result.num_accepted)
        if result.loose:
            loose = [base + index for index in result.loose if index < len(news)]
            self.loose, self.stats.loose = self.loose + loose, self.stats.loose + len(loose)
        num_accepted = self._judge_own(item, ids, result.num_accepted)
        self.logprobs.extend(result.logprobs[: len(news)])
        if self.constraint is not None:
            self.constraint.commit(news)
        if self.emitted is not None:
            self.emitted.add(news)
        self._give_hint(item, now)
        known = base - draft.block.base if draft else 0  # its head, which proved right before
        seen = seen_of(item.drafted, item.rest)
        path, length = agreed(seen, ids), known + depth(seen.tokens, seen.parents)
        self.timing.estimate.judged(length, known + len(path), tried(seen, path))
        self.budget.judged(len(item.drafted.tokens), num_accepted, len(news))
        if draft is None:
            self._tell(base)
            self.stats.commit(len(news), item.hint)
        else:
            stands = self.sequence.agreed(draft.block)
            self._tell(draft.block.base, draft.counter, stands)
            self.stats.commit(len(news), item.hint, len(draft.block.tokens), stands - known)
        self._rebase_pending(len(self.sequence), now)
        return len(news)

    def postpone(self, item: StepItem, now: float) -> None:
        """A target that schedules by itself has decided nothing of it: its draft waits for the next step."""
        self.in_step, self._view = False, None
        self.budget.give_back(len(item.drafted.tokens), now)
        if self.pending is None and item.draft is not None:
            self.pending = self._pending(item.draft, item.rest, item.since)

    def _decide_again(self, item: StepItem, now: float) -> None:
        """Nothing was decided: all that the step computed is computed again, without a draft."""
        self.sequence.rewind(item.segment.start)
        if self.own is not None:
            self.own.block = NO_DRAFT
        if self.pending is None and item.draft is not None:
            self.pending = PendingDraft(item.draft, DraftBlock(len(self.sequence)), now)

    def _judge_own(self, item: StepItem, ids: tuple[int, ...], accepted: int) -> int:
        """The server's own draft has been used up; how many of the `accepted` tokens its device had drafted."""
        if self.own is None:
            return accepted
        stands = self.own.judged(item.own, ids)
        if item.own.tokens:
            self.stats.own.add(len(item.own.tokens), stands)
            accepted = len(agreed(item.drafted, ids))
            self.own.beside(item.own, stands - accepted, item.drafted, self.timing.estimate.forecast)
            if self.turn.hint == 0:
                self.timing.estimate.follow(self.own.estimate)
        self.own.block = NO_DRAFT
        return accepted

    def _give_hint(self, item: StepItem, now: float) -> None:
        """A verdict leaves, with a hint of what the device is to do next."""
        length = len(self.sequence)
        self.timing.left(length, now)
        if item.draft is not None:
            self.timing.asked(length, now)
        if self.turn.verdict(item.draft.counter if item.draft else 0, item.hint):
            self.timing.asked_since = now
        if item.hint is not None:
            self.timing.estimate.device.hint = item.hint

    def _rebase_pending(self, known: int, now: float) -> bool:
        """A draft that arrived before the end of the step meets the new truth, of which its reader knows the first
        `known` tokens to be final. Returns whether it is answered by that."""
        waiting, self.pending = self.pending, None
        if waiting is None:
            return False
        rest = self.sequence.rebase(waiting.draft.block)
        if self.sequence.over or rest is None:
            self._drop(waiting.draft, min(known, waiting.draft.block.base), now)
            return True
        self.pending = self._pending(waiting.draft, rest, waiting.since)
        return False

    def fail(self, error: OpenSledError) -> None:
        """This session ends by an error; its reader is told, no other session notices."""
        self.failed = True
        self.outbox.put(Failure.of(error))
