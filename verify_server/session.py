"""The server's truth about one sequence: committed tokens, KV, the pending draft, and who is to move next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from opensled.errors import InvalidRequest, OpenSledError
from opensled.messages import (
    Draft,
    DraftBlock,
    Failure,
    Moved,
    SamplingParams,
    TokenLogprobs,
    Verdict,
)
from opensled.protocol import EndRules, agreed, cut, rebase
from scheduler.estimates import DraftEstimate
from scheduler.plan import SessionView, Slice
from verify_server.acceptance.base import AcceptanceResult, AcceptanceRule, DraftCheck
from verify_server.draft_budget import DraftBudget
from verify_server.draft_checks import check_draft, check_size
from verify_server.engine.base import Segment
from verify_server.kv.blocks import BlockTable
from verify_server.outbox import Outbox
from verify_server.session_view import view_of
from verify_server.step_item import PendingDraft, StepItem, decided
from verify_server.text.guide import Constraint
from verify_server.trees import depth, depth_first, no_deeper, no_wider, without_twins

NO_DRAFT = DraftBlock(0)
VERDICTS_TIMED = 64  # latest ones of which is known when they left: drafts on older ones are slow in any case


@dataclass(eq=False)
class Session:
    """One sequence. Lives on the server's event loop; only `StepItem` snapshots travel to the engine's thread."""

    id: int
    tenant: str
    tokens: list[int]  # the truth: prompt, then everything committed
    prompt_length: int
    params: SamplingParams
    key: bytes
    ends: EndRules
    rule: AcceptanceRule
    table: BlockTable
    vocab_size: int  # ids that a draft may hold
    max_draft: int  # tokens of a chain
    max_tree: int = 0  # tokens of a tree; 0 = chains only
    tree_reads: int = 0  # positions that its branches may read together; 0 = any number (`EngineInfo`)
    top_logprobs: int | None = None
    constraint: Constraint | None = None  # what a guided answer may go on with; knows all that is committed
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the last tokens: those committed here
    pace: float = 0.0  # tokens/s its user was promised; 0 = none
    background: bool = False
    allowance: DraftBudget = field(default_factory=DraftBudget)  # what of its drafts is verified
    estimate: DraftEstimate = field(default_factory=DraftEstimate)  # of its device's drafts
    hint: int | None = None  # the latest one given, to it or before it to its device
    waiting_since: float = 0.0
    asked_since: float = 0.0  # when the verdict left on which the device now drafts
    begun: float | None = None  # when the first token that it committed left, and
    begun_length: int = 0  # how many there were then
    computed: int = 0  # positions [0, computed) are in the KV blocks
    pending: PendingDraft | None = None
    server_drives: bool = True  # nobody drafts: the server decodes unasked
    in_step: bool = False
    closed: bool = False
    failed: bool = False
    leaving: bool = False  # its reader goes on elsewhere
    latest: int = 0  # highest draft counter heard on the present stream
    finish_reason: str = ""
    outbox: Outbox = field(default_factory=Outbox)
    verdicts: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=VERDICTS_TIMED))
    clock: Callable[[], float] = lambda: 0.0
    wake: Callable[[], None] = lambda: None  # tells the loop that there is something new to plan
    on_stale: Callable[[Draft], None] = lambda draft: None  # hears of drafts that came too late
    has_reader: bool = False

    # -- the reader's side ------------------------------------------------------------------------------

    def attach(self, known: int) -> Outbox:
        """A new reader, who holds `known` tokens, takes over: the older stream ends, the server drives again."""
        self.outbox.put(None)
        self.outbox = Outbox(on_room=self.wake)
        self.has_reader = True
        self.pending = None
        self.server_drives = True
        self.verdicts.clear()  # what the device sends again after an outage says nothing of its drafting
        self.latest = 0
        if known < len(self.tokens) or self.finish_reason:
            self._tell(known)
        self.wake()
        return self.outbox

    def detach(self) -> None:
        """The reader is gone: nothing more is computed until one comes back."""
        self.has_reader = False
        self.pending = None

    def hand_over(self) -> None:
        """Send the reader elsewhere; what is being computed for him goes out first."""
        self.leaving = True
        if not self.in_step:  # else once more when the step ends
            self.outbox.put(Moved())
            self.detach()

    def submit(self, draft: Draft) -> None:
        """Take a draft by the position rules; answers at once when nothing of it needs computing."""
        if draft.counter <= self.latest:  # a repeated frame, or one that a later draft overtook
            return
        self.latest = draft.counter
        self._check(draft.block)
        if draft.block.parents:
            draft = replace(draft, block=without_twins(draft.block))
        rest = rebase(draft.block, self.tokens)
        # It was sent before the device heard of the hint
        self.server_drives = not draft.block.tokens or self.hint == 0
        now = self.clock()
        self._time(draft, now)
        if self.finish_reason or rest is None:
            self._drop(draft)
        elif draft.block.tokens:
            self.pending = PendingDraft(draft, rest, now)
        else:
            self.pending = None
        self.wake()

    def _time(self, draft: Draft, now: float) -> None:
        """Learn how long the device takes, from the verdict it drafted on to its draft."""
        block = draft.block
        left = next((left for length, left in self.verdicts if length == block.base), None)
        if block.tokens and left is not None:
            self.estimate.arrived(now - left, depth(block.tokens, block.parents), draft.seconds)

    def _check(self, block: DraftBlock) -> None:
        check_size(block, self.max_draft, self.max_tree)
        if block.base < self.prompt_length:
            raise InvalidRequest(f"base {block.base} lies inside the prompt ({self.prompt_length})", "base")
        check_draft(block, self.vocab_size, self.rule)

    def _drop(self, draft: Draft) -> None:
        """Answer a draft of which nothing can be computed any more."""
        if not self.finish_reason:
            self.on_stale(draft)
            self._ask(self.clock())
            block, since = draft.block, self.tokens[draft.block.base :]
            known = min(depth(block.tokens, block.parents), len(since))
            self.estimate.judged(known, len(agreed(block, since)))
        self._tell(draft.block.base, draft)

    def _tell(self, base: int, answered: Draft | None = None) -> None:
        """Send the truth since `base`."""
        since = tuple(self.tokens[base:])
        self.outbox.put(
            Verdict(
                base=base,
                tokens=since,
                num_accepted=len(agreed(answered.block, since)) if answered else 0,
                answers=answered.counter if answered else 0,
                finish_reason=self.finish_reason,
                hint=self.hint,
                logprobs=tuple(self.logprobs[-len(since) :]) if since else (),
            )
        )

    # -- the scheduler's side ---------------------------------------------------------------------------

    @property
    def awaits_draft(self) -> bool:
        """Whether its device is at work on one."""
        return self.has_reader and not self.server_drives and self.pending is None

    @property
    def rests(self) -> bool:
        """Whether nothing can be done for it right now: no reader, a slow one, or a device at work."""
        return not self.has_reader or (self.pending is None and (not self.server_drives or self.outbox.full))

    def view(self) -> SessionView:
        return view_of(self)

    def longest(self) -> int:
        """Longest draft of its device that is verified now."""
        return self.allowance.longest(self.max_draft, len(self.tokens), self.clock())

    def plan(self, piece: Slice) -> StepItem:
        """Turn a slice into work for the engine; grows the block table (OutOfBlocks changes nothing)."""
        stop = self.computed + piece.tokens
        assert piece.decide == (stop == len(self.tokens)), (
            "a slice decides just when it reaches the newest token"
        )
        pending = self.pending if piece.decide else None
        longest = self.longest()
        block = self._cut(pending.rest, piece.draft, longest) if pending else NO_DRAFT
        draft = block.tokens
        self.table.grow(stop + len(draft))
        question = None
        if piece.decide:
            question = DraftCheck(
                draft, stop, self.params, self.key, self.top_logprobs, parents=block.parents
            )
            self.pending = None
            self.allowance.take(len(draft), len(self.tokens), self.clock())
        # Padding computes positions before these once more: the same work, and no row differs for it.
        start = max(self.table.frozen, self.computed - piece.padding)
        assert self.table.is_own(start), "a step writes in KV blocks of its own session only"
        segment = Segment(
            tokens=(*self.tokens[start:stop], *[token.id for token in draft]),
            start=start,
            blocks=tuple(self.table.blocks),
            rows=len(draft) + 1 if piece.decide else 0,
            parents=block.parents,
        )
        self.in_step = True
        hint = self.allowance.hint(piece.hint, longest) if piece.decide else None
        return StepItem(self, segment, question, pending.draft if pending else None, hint)

    def _cut(self, rest: DraftBlock, most: int | None, longest: int) -> DraftBlock:
        """What of a draft is verified, `most` tokens of it: a chain of `longest`, or a tree in the engine's order.

        The last position to commit needs no draft, it is the bonus token.
        """
        useful = max(0, self.ends.last_length - len(self.tokens) - 1)
        most = len(rest.tokens) if most is None else most
        if not rest.parents:
            return rest.first(min(useful, longest, most))
        allowed = self.allowance.longest(self.max_tree, len(self.tokens), self.clock())
        # What a tree needs beyond the longest chain it takes of free memory: nobody loses his KV for it.
        room = max(self.max_draft, self.table.reach() - len(self.tokens))
        tree = no_deeper(rest, useful).first(min(allowed, room, most))
        if self.tree_reads:
            tree = no_wider(tree, max(1, self.tree_reads // len(self.tokens)))
        return depth_first(tree)

    def commit(self, planned: StepItem, decision: AcceptanceResult | None, now: float) -> int:
        """Apply a step; returns how many tokens it committed."""
        self.in_step = False
        if decision is None or planned.question is None:
            self.computed = planned.segment.start + len(planned.segment.tokens)
            self.table.publish(self.tokens, self.computed)
            return 0
        base, num_accepted = len(self.tokens), decision.num_accepted
        news, self.finish_reason = cut(decided(planned.question, decision), base, self.ends)
        self.tokens.extend(news)
        self.logprobs.extend(decision.logprobs[: len(news)])
        if self.constraint is not None:
            self.constraint.commit(news)
        # KV stands for everything computed from tokens that became the truth; the newest has none yet.
        self.computed = min(base + num_accepted, len(self.tokens) - 1)
        self.table.truncate(self.computed)
        self.table.publish(self.tokens, self.computed)
        self._leave(planned, now)
        known = base - planned.draft.block.base if planned.draft else 0  # its head, which proved right before
        self.estimate.judged(known + planned.question.depth, known + num_accepted)
        self.allowance.judged(len(planned.question.ids), num_accepted)
        self._tell(planned.draft.block.base if planned.draft else base, planned.draft)
        self._rebase_pending()
        return len(news)

    def _leave(self, planned: StepItem, now: float) -> None:
        """A verdict leaves, with a hint of what the device is to do next."""
        self.waiting_since = now
        if self.begun is None:
            self.begun, self.begun_length = now, len(self.tokens)
        if planned.draft is not None:
            self._ask(now)
        if planned.hint is None:
            return
        if planned.hint == 0:
            self.server_drives = True
        elif self.hint == 0:  # a device that was told to rest drafts again
            self.server_drives, self.asked_since = False, now
        self.hint = self.estimate.device.hint = planned.hint

    def _ask(self, now: float) -> None:
        """A verdict leaves on which the device, which has just drafted, drafts again.

        A first draft, or one after a rest, has a long text to read before it: how long it takes says nothing of others.
        """
        self.asked_since = now
        self.verdicts.append((len(self.tokens), now))

    def _rebase_pending(self) -> None:
        """A draft that arrived during the step meets the new truth."""
        if self.pending is None:
            return
        (draft, _, since), self.pending = self.pending, None
        rest = rebase(draft.block, self.tokens)
        if self.finish_reason or rest is None:
            self._drop(draft)
        else:
            self.pending = PendingDraft(draft, rest, since)

    def fail(self, error: OpenSledError) -> None:
        """This session ends by an error; its reader is told, nobody else notices."""
        self.failed = True
        self.outbox.put(Failure.of(error))

    def forget_kv(self) -> None:
        """Give all KV blocks back; what is not found again by then is recomputed when the session is planned."""
        self.table.clear()
        self.computed = 0

    def adopt_kv(self) -> None:
        """Take over what others, or this session before, computed of the tokens that it has yet to compute."""
        assert not self.in_step, "the engine writes behind what was computed"
        self.computed = self.table.adopt(self.tokens, self.computed)
