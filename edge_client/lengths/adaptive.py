"""The default rule of blocks: most expected tokens per second, by the law of this device, from what it hears anyway.

It learns acceptance by position, the speed of the draft model, how long rounds take and how fast the server is alone
(edge_client/lengths/observed.py), asks the law for the best length (law.py), and leaves the writing to the server where
drafts do not pay (settling.py). A hot board drafts more slowly and is followed like that; on a low battery drafts rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from edge_client.lengths.base import UNADVISED, DraftLengthPolicy, LengthOptions
from edge_client.lengths.board_watch import BoardWatch
from edge_client.lengths.draft_law import DraftLaw, Lengths
from edge_client.lengths.gate import DraftGate
from edge_client.lengths.observed import DOUBTFUL, Acceptance, DraftPace, LookAheadHits, RoundTimes, Streamed
from edge_client.lengths.status import DraftStatus, battery_words, drafting_words, resting_words
from edge_client.lengths.tree_choice import CHAIN, TreeChoice
from hw_profiles.sysfs import BoardState
from opensled.messages import DraftBlock

log = logging.getLogger(__name__)

LONGEST = 32  # tokens of a block, whatever the server takes
# Every so many rounds another length is tried, or the times of longer blocks would never be known; at first more often.
TRIES, FIRST_TRIES, FIRST_ROUNDS = 16, 6, 60
OTHERS = (1, -1, 2, -2, 4, -3)  # by so many tokens another
OPEN_BLOCKS = 64  # verdicts of which the next block is awaited
# A block comes at most so long after the verdict before it, beyond so many times what its tokens usually take.
PAUSE_S, SLOWER = 1.0, 4.0
LONG_AGO_S = 10.0  # without a verdict; then what was learned is doubted


class Adaptive(DraftLengthPolicy):
    """One lock: several threads ask and tell it, for microseconds each."""

    def __init__(
        self,
        length: int = 0,
        look_ahead: bool = True,
        tree: int = 0,
        battery_floor: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
        board: Callable[[], BoardState] | None = None,
    ) -> None:
        """`length`: upper bound of its owner, 0 = none; `look_ahead`: whether drafters go on while a verdict travels;
        `tree`: nodes of a tree at most; `battery_floor`: percent; `board`: gives the board's state at once."""
        self._length, self._look_ahead, self._floor = length or LONGEST, look_ahead, battery_floor
        self._most_nodes = tree
        self._clock, self._board = clock, board or BoardWatch(clock=clock)
        self._lock = threading.Lock()
        self._acceptance, self._times, self._speed = Acceptance(), RoundTimes(), DraftPace()
        self._streamed, self._bets = Streamed(), LookAheadHits()
        self._choice, self._trees = DraftGate(), TreeChoice(tree)
        self._has_trees = False  # drafter and server, when asked last
        self._ends: OrderedDict[int, float] = OrderedDict()  # base of a next block -> when its wait began
        # When the latest verdict on a block came, and when the latest draft token.
        self._heard_at = self._drafted_at = float("-inf")
        self._state = BoardState()
        self._hint: int | None = None
        self._asked = self._length  # tokens of a block at most, when last asked
        self._basis = (-1, 0)  # rounds, and longest block, that the law rests on
        self._solved: tuple[DraftLaw, Lengths]
        self._status = DraftStatus(True, "nothing drafted yet", UNADVISED)

    @classmethod
    def of(cls, options: LengthOptions) -> Adaptive:
        return cls(options.length, options.look_ahead, options.tree, options.battery_floor)

    # -- what it is asked ---------------------------------------------------------------------------------

    def most(self, limit: int, hint: int | None = None, ready: int = 0) -> int:
        """See `DraftLengthPolicy`."""
        with self._lock:
            top = self.top(limit, hint)
            if not top or not self._drafts(top, hint):
                return 0
            if not self._times.rounds:
                return min(top, UNADVISED)
            if ready:
                self._bets.won()
            law, best = self._law(top)
            return min(top, max(1, law.length(ready, best) + self._offset()))

    def ahead(self, limit: int, hint: int | None = None) -> int:
        """See `DraftLengthPolicy`: what a round has time for, but no more than would be sent if it cost nothing."""
        with self._lock:
            top = self.top(limit, hint)
            if not top or self._rests():
                return 0
            if not self._times.rounds:
                return min(top, UNADVISED)
            law, best = self._law(top)
            return min(law.ahead, law.length(top, best))

    def top(self, limit: int, hint: int | None = None) -> int:
        """Tokens of a block that there is room for, by everybody who has a say."""
        return min(limit, self._length) if hint is None else min(limit, self._length, hint)

    def nodes(self, limit: int, hint: int | None = None) -> int:
        """See `DraftLengthPolicy`."""
        with self._lock:
            top = min(limit, self._most_nodes)
            self._has_trees = top > 0
            if hint == 0 or not self._tree or not self._drafts(self.top(top, hint), hint):
                return 0
            return min(top, self._tree)

    @property
    def status(self) -> DraftStatus:
        """What it has settled on."""
        return self._status

    def price(self, fresh: bool) -> float | None:
        """What one more draft token costs, in tokens that could be committed meanwhile; `fresh`: it must be drafted
        first. None: not known yet."""
        with self._lock:
            if not self._times.rounds:
                return None
            law, best = self._law()
            return best.rate * (law.slope_s + (1 - law.hidden) * law.token_s * fresh)

    # -- what it hears ------------------------------------------------------------------------------------

    def drafted(self, tokens: int, seconds: float) -> None:
        """See `DraftLengthPolicy`."""
        with self._lock:
            now = self._clock()
            if now - self._drafted_at > LONG_AGO_S:
                self._speed.forget()
            self._drafted_at = now
            for _ in range(tokens):
                self._speed.took(seconds / tokens)

    def answered(self, block: DraftBlock, accepted: int, seconds: float) -> None:
        """See `DraftLengthPolicy`."""
        if not block.tokens:
            return
        with self._lock:
            now = self._clock()
            if now - self._heard_at > LONG_AGO_S:
                self._doubt()
            self._heard_at = now
            drafting_s = self._drafting_s(block, now - seconds)
            if not block.parents:
                self._judged(len(block.tokens), accepted, seconds, drafting_s)
            spent_s = seconds + drafting_s
            if self._has_trees:
                self._trees.took(len(block.tokens) if block.parents else CHAIN, accepted + 1, spent_s)
            self._choice.round_over(now, accepted + 1, spent_s, self._rate(), self._streamed.rate)
            self._ends[block.base + accepted + 1] = now
            if len(self._ends) > OPEN_BLOCKS:
                self._ends.popitem(last=False)

    def streamed(self, tokens: int, seconds: float) -> None:
        """See `DraftLengthPolicy`."""
        with self._lock:
            self._streamed.took(tokens, seconds)
            self._choice.heard(self._clock(), tokens, seconds, self._rate())

    # -- the rest holds the lock --------------------------------------------------------------------------

    def _judged(self, length: int, accepted: int, seconds: float, drafting_s: float) -> None:
        law = self._law()[0]
        if law.ahead:
            self._bets.placed(float(law.reach[min(length, law.top) + 1]))
        self._acceptance.judged(length, accepted)
        token_s = self._speed.token_s
        fresh = min(length, round(drafting_s / token_s)) if token_s else length
        self._times.took(seconds, length, drafting_s, fresh)

    def _drafting_s(self, block: DraftBlock, sent_at: float) -> float:
        """From the verdict before to a block that was sent at that time; else what its tokens usually take."""
        began, usual_s = self._ends.pop(block.base, None), len(block.tokens) * (self._speed.token_s or 0.0)
        # One much longer ago was the end of another answer, of the same length by chance.
        if began is None or sent_at - began > PAUSE_S + SLOWER * usual_s:
            return usual_s
        return max(0.0, sent_at - began)

    def _doubt(self) -> None:
        """Nothing was drafted for long: the next few rounds say more than those of then."""
        self._acceptance.fade(DOUBTFUL)
        if self._times.rounds:
            self._times.fade(DOUBTFUL)

    def _drafts(self, top: int, hint: int | None) -> bool:
        """Whether to draft now, at most `top` tokens."""
        now, self._asked = self._clock(), top
        self._notice(now, hint)
        if self._rests():
            self._tell(self._battery())
            return False
        law, best = self._law(top)
        ours, servers = max(best.rate, self._trees.rate if self._tree else 0.0), self._streamed.rate
        drafts = not self._times.rounds or self._choice.drafts(now, ours, servers)
        self._tell(self._description(law, best, ours, servers))
        return drafts

    def _notice(self, now: float, hint: int | None) -> None:
        """Whatever may have changed since drafts were given up."""
        before, self._state = self._state, self._board()
        freer = before.throttled and not self._state.throttled
        charged = before.discharging and not self._state.discharging
        more = hint is not None and self._hint is not None and hint > self._hint
        self._hint = hint
        if freer or charged or more:
            self._choice.changed(now, much=bool(freer or charged))

    @property
    def _tree(self) -> int:
        """Nodes of a tree that is worth more than a chain; 0 = none is."""
        return self._trees.present if self._has_trees else CHAIN

    def _rests(self) -> bool:
        state = self._state
        return state.discharging and state.battery_percent is not None and state.battery_percent < self._floor

    def _offset(self) -> int:
        """Mostly 0."""
        rounds = self._times.rounds
        turn, tried = divmod(rounds, FIRST_TRIES if rounds < FIRST_ROUNDS else TRIES)
        return 0 if tried else OTHERS[turn % len(OTHERS)]

    def _rate(self) -> float:
        """Tokens/s of drafts, as expected."""
        return self._law()[1].rate if self._times.rounds else 0.0

    def _law(self, top: int = 0) -> tuple[DraftLaw, Lengths]:
        """Of blocks of at most `top` tokens; 0 = as in the latest question."""
        token_s, top = self._speed.token_s or 0.0, top or self._asked
        basis = (self._times.rounds, top)
        if basis != self._basis or abs(self._solved[0].token_s - token_s) > 0.05 * token_s:
            law = DraftLaw(
                self._acceptance.chances(top + 1),
                max(self._times.base_s, 1e-6),
                self._times.slope_s,
                token_s,
                self._times.mean_s,
                top,
                self._times.hidden,
                self._bets.luck,
                self._bets.share,
                self._look_ahead,
                self._times.deviations(),
            )
            self._basis, self._solved = basis, (law, law.best())
        return self._solved

    def _battery(self) -> DraftStatus:
        return DraftStatus(
            False,
            battery_words(self._state.battery_percent or 0.0, self._floor),
            server_rate=self._streamed.rate,
        )

    def _description(self, law: DraftLaw, best: Lengths, ours: float, servers: float | None) -> DraftStatus:
        if not self._times.rounds:
            return self._status
        drafting = not self._choice.alone
        nodes = self._tree
        words = (
            drafting_words(best.cold, ours, servers, nodes)
            if drafting
            else resting_words(ours, servers or 0.0)
        )
        length = (nodes or best.cold) if drafting else 0
        return DraftStatus(drafting, words, length, ours, servers, law.token_s, law.chances[0])

    def _tell(self, status: DraftStatus) -> None:
        before, self._status = self._status, status
        if before.drafting != status.drafting:
            log.info("%s", status.words, extra=status.figures())
