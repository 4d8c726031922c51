"""The simulated server's truth about one sequence: verify_server/session.py in lengths, for the text is known."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple, Protocol

from opensled_testbed.emulation.step_law import Piece
from opensled_testbed.fleet import Wish
from opensled_testbed.simulated.drafts import MAX_DRAFT, Block, Script
from scheduler.estimates import DraftEstimate
from scheduler.plan import SessionView, Slice
from verify_server.draft_budget import DraftBudget, DraftRecord
from verify_server.session_manager import SessionLimits
from verify_server.session_timing import VERDICTS_TIMED


class Reader(Protocol):
    """The device's end of a session; messages to it travel its own link."""

    def refused(self) -> None:
        """All places are taken."""

    def opened(self, hint: int | None) -> None:
        """The session exists; `hint` is for the first block."""

    def told(self, base: int, end: int, answers: Block | None, hint: int | None) -> None:
        """The truth is `end` tokens of the text, of which those since `base` are sent; it answers that block."""


class Planned(NamedTuple):
    """What a step computes for one session."""

    session: Session
    piece: Piece
    decides: bool
    block: Block | None  # the draft it answers
    hint: int | None  # goes with the verdict


class Session:
    """One sequence. Lengths count tokens of the text; the prompt comes before it."""

    __slots__ = (
        "_allowance",
        "_verdicts",
        "asked_since",
        "begun",
        "begun_length",
        "committed",
        "computed",
        "drafted",
        "estimate",
        "hint",
        "id",
        "pending",
        "pending_since",
        "reader",
        "script",
        "server_drives",
        "since",
        "wish",
    )

    def __init__(self, reader: Reader, script: Script, wish: Wish = Wish()) -> None:
        self.reader, self.script, self.wish = reader, script, wish
        self.id = 0
        self.committed = 0  # tokens of the text
        self.computed = 0  # positions in the KV cache, prompt included
        self.pending: Block | None = None
        self.pending_since = 0.0
        self.server_drives = True
        self.drafted = False  # whether a draft, be it an empty one, has ever come
        self.hint: int | None = None  # the latest one, given to it or before it to its device
        self.estimate = DraftEstimate()
        self.since = 0.0  # when its last verdict left
        self.asked_since = 0.0  # when the verdict left on which the device now drafts
        self.begun: float | None = None  # when the first token left, and
        self.begun_length = 0  # how many there were then
        self._allowance = DraftBudget(floor=SessionLimits.min_acceptance)
        self._verdicts: deque[tuple[int, float]] = deque(maxlen=VERDICTS_TIMED)

    def begin(self, id: int, estimate: DraftEstimate, record: DraftRecord, now: float) -> None:
        """The server lets it in; `estimate` and `record` are those of its device."""
        self.id, self.estimate, self.hint = id, estimate, estimate.device.hint
        self._allowance.record = record
        self.since = self.asked_since = now

    @property
    def finished(self) -> bool:
        return self.committed == self.script.text

    def view(self) -> SessionView:
        """`Session.view`, of a reader who is always there and reads."""
        block, wish = self.pending, self.wish
        return SessionView(
            self.id,
            self.script.prompt + self.committed - self.computed,
            None if block is None else block.base + block.tokens - self.committed,
            self.server_drives,
            self.since,
            False,
            False,
            self.computed,
            self.since if block is None else self.pending_since,
            wish.pace,
            self._due(),
            wish.background,
            self.hint,
            self.estimate.forecast if self.drafted or self.estimate.drafts else None,
            self._longest(),
            self.asked_since,
        )

    def _longest(self) -> int:
        """`Session._longest`; without a quota the time does not matter."""
        length = self.script.prompt + self.committed
        return self._allowance.longest(MAX_DRAFT, length, 0.0)

    def _due(self) -> float:
        if not self.wish.pace:
            return inf
        if self.begun is None:
            return self.since
        return self.begun + (self.committed + 1 - self.begun_length) / self.wish.pace

    def submit(self, block: Block, seconds: float, now: float) -> bool:
        """`Session.submit`; False: nothing of it is left to compute, and the truth is the answer."""
        self.drafted = True
        self.server_drives = not block.tokens or self.hint == 0
        self._time(block, seconds, now)
        if block.rest_at(self.committed) is None:
            return False
        self.pending, self.pending_since = (block if block.tokens else None), now
        return True

    def _time(self, block: Block, seconds: float, now: float) -> None:
        """Learn how long the device takes, from the verdict it drafted on to its draft."""
        left = next((left for length, left in self._verdicts if length == block.base), None)
        if block.tokens and left is not None:
            self.estimate.arrived(now - left, block.tokens, seconds)

    def drop(self, block: Block, now: float) -> None:
        """`Session._drop`, of one that is not finished."""
        self._ask(now)
        known = min(block.tokens, self.committed - block.base)
        self.estimate.judged(known, min(known, block.reach))

    def plan(self, piece: Slice) -> Planned:
        """`Session.plan`: draft tokens that cannot commit any more are left out, padding goes over what is there."""
        stop, longest = self.computed + piece.tokens, self._longest()
        block, drafted = None, 0
        if piece.decide:
            block, self.pending = self.pending, None
            drafted = min(self._useful(block, piece.draft), longest) if block else 0
            self._allowance.take(drafted, self.script.prompt + self.committed, 0.0)
        tokens = piece.tokens + min(piece.padding, self.computed) + drafted
        hint = self._allowance.hint(piece.hint, longest) if piece.decide else None
        return Planned(self, Piece(tokens, stop + drafted, drafted), piece.decide, block, hint)

    def _useful(self, block: Block, most: int | None) -> int:
        """Of its pending draft, how many tokens can still commit; at most `most` of them."""
        rest = block.base + block.tokens - self.committed
        useful = min(rest, max(0, self.script.last - self.committed - 1))
        return useful if most is None else min(useful, most)

    def commit(self, planned: Planned, now: float) -> int:
        """`Session.commit`: what agrees with the text, and one token more; never beyond its end."""
        piece, block = planned.piece, planned.block
        if not planned.decides:
            self.computed = piece.end
            return 0
        script, base = self.script, self.committed
        accepted = min(block.base + block.reach - base, piece.drafted) if block else 0
        self.committed = min(base + accepted + 1, script.text)
        self.computed = script.prompt + min(base + accepted, self.committed - 1)
        self._leave(planned, now)
        known = base - block.base if block else 0  # its head, which proved right before
        self.estimate.judged(known + piece.drafted, known + accepted)
        self._allowance.judged(piece.drafted, accepted)
        self.reader.told(block.base if block else base, self.committed, block, self.hint)
        return self.committed - base

    def _leave(self, planned: Planned, now: float) -> None:
        """`Session._leave`: a verdict leaves, with a hint of what the device is to do next."""
        self.since = now
        if self.begun is None:
            self.begun, self.begun_length = now, self.committed
        if planned.block is not None:
            self._ask(now)
        if planned.hint is None:
            return
        if planned.hint == 0:
            self.server_drives = True
        elif self.hint == 0:
            self.server_drives, self.asked_since = False, now
        self.hint = self.estimate.device.hint = planned.hint

    def _ask(self, now: float) -> None:
        """`Session._ask`: a verdict leaves on which the device, which has just drafted, drafts again."""
        self.asked_since = now
        self._verdicts.append((self.committed, now))
