"""Turn-taking of one sequence, as both ends see it: no I/O, no clock.

The device and the server each keep a `Turn` and tell it the same three events: a draft, a verdict, a stream that was
opened again. It says who drives (the server decodes unasked, or waits for a draft), which drafts have no verdict yet,
and what the latest hint allows. docs/protocol.md shows its transitions as a table. The model is h11's `_state.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

from opensled.errors import FutureBase
from opensled.messages import Draft, DraftBlock, Verdict
from opensled.protocol import Truth


class Turn:
    """The state of one sequence's turn at one end.

    `hint`: longest useful next block in tokens, of a tree its depth, by the latest advice; 0 = do not draft, None = no
    advice. `server_drives`: the server decodes without a draft. `unanswered`: drafts without a verdict, oldest first; a
    continuation among them holds the tokens of the draft before it as well, and so it follows the truth.
    """

    __slots__ = ("_chain", "_decided", "hint", "latest", "server_drives", "unanswered")

    def __init__(self, hint: int | None = None) -> None:
        self.hint = hint
        self.server_drives = True
        self.unanswered: tuple[Draft, ...] = ()
        self.latest = 0  # counter of the newest draft on this stream
        # What may be continued: the newest draft, and where it has a verdict what stood from its base on then
        self._chain: DraftBlock | None = None
        self._decided: tuple[int, ...] | None = None

    # -- events -----------------------------------------------------------------------------------------

    def draft(self, draft: Draft) -> bool:
        """A new draft (`is_new`) is sent, or arrives; it replaces an older one without a verdict, or continues it.

        False: it continues one that has failed, and is void. Raises FutureBase if it does not begin at the end of that.
        """
        assert self.is_new(draft), "drafts of one stream are numbered upwards"
        if draft.continues:
            return self._continue(draft)
        self.latest = draft.counter
        self.unanswered = (draft,) if draft.block.tokens else ()
        self._chain, self._decided = (draft.block if draft.block.tokens else None), None
        # An empty draft hands the drive back. Under hint 0 a draft was sent before the hint was heard: none follows it.
        self.server_drives = not self.unanswered or self.hint == 0
        return True

    def _continue(self, draft: Draft) -> bool:
        chain = self._chain
        assert chain is not None, "only what may be continued is"
        if draft.block.base != _end(chain) or chain.parents or draft.block.parents:
            raise FutureBase(
                f"draft {draft.counter} at {draft.block.base} does not continue draft {draft.continues}, a chain that "
                f"ends at {_end(chain)}; continue the latest draft at its end, or send a draft on committed tokens"
            )
        self.latest = draft.counter
        joined = DraftBlock(chain.base, chain.tokens + draft.block.tokens)
        if self._decided is None:
            self._chain = joined
            self.unanswered = (*self.unanswered, replace(draft, block=joined))
            return True
        return self._stands(replace(draft, block=joined), self._decided)

    def _stands(self, draft: Draft, since: tuple[int, ...]) -> bool:
        """What `draft` continues has its verdict, with `since` after the base of both: if it stands, the rest of it is
        the only draft without one."""
        block = draft.block
        rest = DraftBlock(block.base + len(since), block.tokens[len(since) :])
        stands = block.ids[: len(since)] == since
        self.unanswered = (replace(draft, block=rest, continues=0),) if stands else ()
        self._chain, self._decided = (rest if stands else None), None
        return stands

    def verdict(self, answers: int, hint: int | None, truth: Sequence[int]) -> bool:
        """A verdict leaves, or arrives, which makes `truth` the committed tokens; it answers drafts up to counter
        `answers`, 0 = none.

        True: its hint ends a rest, so that the server now waits for a draft.
        """
        self.unanswered = tuple([draft for draft in self.unanswered if draft.counter > answers])
        if self.unanswered and 0 < self.unanswered[0].continues <= answers:
            draft = self.unanswered[0]
            self._stands(draft, tuple(truth[draft.block.base :]))
        elif answers == self.latest and self._chain is not None:
            self._decided = tuple(truth[self._chain.base :])
        rested = self.hint == 0
        if hint is None:
            return False
        self.hint = hint
        if hint == 0:
            self.server_drives = True
        elif rested:
            self.server_drives = False
        return rested and hint > 0

    def reopened(self, hint: int | None) -> tuple[Draft, ...]:
        """A new stream: the server drives until the first draft on it. Returns the drafts to send again."""
        lost, self.unanswered = self.unanswered[-1:], ()
        self.hint, self.server_drives, self.latest = hint, True, 0
        self._chain = self._decided = None
        return tuple([replace(draft, continues=0) for draft in lost])

    # -- what follows from it -----------------------------------------------------------------------------

    def is_new(self, draft: Draft) -> bool:
        """Whether a draft is not a frame that is repeated, or that a later draft overtook; nor one that continues what
        is not the newest draft, or is a continuation without a verdict itself."""
        if draft.continues and (
            draft.continues != self.latest or self._chain is None or len(self.unanswered) > 1
        ):
            return False
        return draft.counter > self.latest

    @property
    def may_draft(self) -> bool:
        """Whether the server has use for one more block."""
        return not self.unanswered and self.hint != 0

    @property
    def continuable(self) -> DraftBlock | None:
        """The chain without a verdict that may be continued now; None = there is none, or it is continued already."""
        if len(self.unanswered) != 1 or self.hint == 0 or self.unanswered[0].block.parents:
            return None
        return self.unanswered[0].block

    @property
    def awaits_draft(self) -> bool:
        """Whether the server waits for a draft that the device is at work on."""
        return not self.server_drives and not self.unanswered

    def allowed(self, length: int) -> int:
        """Tokens of a chain of `length` that the hint allows."""
        return length if self.hint is None else min(length, self.hint)

    def answered(self, counter: int) -> Draft | None:
        """The unanswered draft that a verdict with this counter answers."""
        return next((draft for draft in self.unanswered if draft.counter == counter), None)


def hear(verdict: Verdict, truth: Truth, turn: Turn) -> tuple[tuple[int, ...], Draft | None]:
    """A device hears a verdict: extend the truth, take the turn. Returns the tokens that it commits, and
    the draft it answers.

    Of several hints the one of the verdict that reaches furthest counts: a repeated verdict brings no old one back.
    """
    is_newest = truth.is_newer(verdict) or verdict.base + len(verdict.tokens) == len(truth)
    news, answered = truth.extend(verdict) or (), turn.answered(verdict.answers)
    turn.verdict(verdict.answers, verdict.hint if is_newest else None, truth.tokens)
    return news, answered


def _end(block: DraftBlock) -> int:
    """The base of what continues a chain."""
    return block.base + len(block.tokens)
