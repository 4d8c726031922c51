"""Turn-taking of one sequence, as both ends see it: no I/O, no clock.

The device and the server each keep a `Turn` and report the same three events to it: a draft, a verdict, a reopened
stream. It knows whether the server drives (decodes without a draft) or waits for a draft, which draft has no verdict
yet, and the latest hint. docs/protocol.md shows its transitions as a table. The model is h11's `_state.py`.
"""

from opensled.core.messages import Draft, Verdict, Why
from opensled.core.protocol import Truth


class Turn:
    """The state of one sequence's turn at one end.

    `hint`: maximum useful length of the next block in tokens (the depth of a tree), by the latest verdict; 0 = do not
    draft, None = no hint. `why`: the reason of a 0, None = not told. `server_drives`: the server decodes without a
    draft. `unanswered`: the draft without a verdict.
    """

    __slots__ = ("hint", "latest", "server_drives", "unanswered", "why")

    def __init__(self, hint: int | None = None, why: Why = None) -> None:
        self.hint, self.why = hint, why
        self.server_drives = True
        self.unanswered: Draft | None = None
        self.latest = 0  # counter of the newest draft on this stream

    # -- events -----------------------------------------------------------------------------------------

    def draft(self, draft: Draft) -> None:
        """A new draft (`is_new`) is sent, or arrives; it replaces an older one without a verdict."""
        assert self.is_new(draft), "drafts of one stream are numbered upwards"
        self.latest = draft.counter
        self.unanswered = draft if draft.block.tokens else None
        # An empty draft hands the drive back. Under hint 0 a draft was sent before the hint was heard: none follows it.
        self.server_drives = self.unanswered is None or self.hint == 0

    def verdict(self, answers: int, hint: int | None, why: Why = None) -> bool:
        """A verdict leaves, or arrives; it answers drafts up to counter `answers`, 0 = none.

        True: its hint ends a rest, so that the server now waits for a draft.
        """
        if self.unanswered is not None and self.unanswered.counter <= answers:
            self.unanswered = None
        rested = self.hint == 0
        if hint is None:
            return False
        self.hint, self.why = hint, (why or self.why) if hint == 0 else None
        if hint == 0:
            self.server_drives = True
        elif rested:
            self.server_drives = False
        return rested and hint > 0

    def reopen(self, hint: int | None, why: Why = None) -> Draft | None:
        """A new stream: the server drives until the first draft on it. Returns the draft to send again."""
        lost, self.unanswered = self.unanswered, None
        self.hint, self.why, self.server_drives, self.latest = hint, why, True, 0
        return lost

    # -- what follows from it -----------------------------------------------------------------------------

    def is_new(self, draft: Draft) -> bool:
        """Whether a draft is new: neither repeated nor overtaken by a later draft."""
        return draft.counter > self.latest

    @property
    def may_draft(self) -> bool:
        """Whether the server has use for one more block."""
        return self.unanswered is None and self.hint != 0

    @property
    def awaits_draft(self) -> bool:
        """Whether the server waits for a draft that the device is at work on."""
        return not self.server_drives and self.unanswered is None

    def limit(self, length: int) -> int:
        """Tokens of a chain of `length` that the hint allows."""
        return length if self.hint is None else min(length, self.hint)

    def match_verdict(self, counter: int) -> Draft | None:
        """The unanswered draft, if a verdict with this counter answers it."""
        draft = self.unanswered
        return draft if draft is not None and draft.counter == counter else None


def hear(verdict: Verdict, truth: Truth, turn: Turn) -> tuple[tuple[int, ...], Draft | None]:
    """A device hears a verdict: extend the truth, take the turn. Returns the tokens that it commits, and
    the draft it answers.

    Of several hints the one of the verdict that reaches furthest counts: a repeated verdict brings no old one back.
    """
    is_newest = truth.is_newer(verdict) or verdict.base + len(verdict.tokens) == len(truth)
    news, answered = truth.extend(verdict) or (), turn.match_verdict(verdict.answers)
    turn.verdict(verdict.answers, verdict.hint if is_newest else None, verdict.why)
    return news, answered
