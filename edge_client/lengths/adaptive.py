"""The default draft-length policy: the length with the most expected tokens per second.

It learns acceptance by position and round times (observed.py), the speeds of the draft model and of the server alone,
asks the law for the best length (draft_law.py), and leaves decoding to the server where drafts do not pay (gate.py).
It follows a hot board that drafts more slowly; on a low battery it drafts nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from edge_client.lengths.base import (
    UNADVISED,
    DraftLengthPolicy,
    LengthOptions,
)
from edge_client.lengths.board_watch import board_watch
from edge_client.lengths.draft_law import DraftLaw
from edge_client.lengths.gate import CHAIN, DraftGate, TreeChoice, offset
from edge_client.lengths.learned_sums import Learned
from edge_client.lengths.observed import (
    DOUBTFUL,
    ROUNDS,
    STREAM,
    Acceptance,
    RoundTimes,
    VerdictTimes,
    server_rate,
    shortest_round,
    streamed,
)
from edge_client.lengths.words import (
    NOTHING_YET,
    Decision,
    battery_words,
    drafting_words,
    resting_words,
)
from hw_profiles.fading import FadingRatio, mean_but_largest
from hw_profiles.sysfs import BoardState
from opensled.drafting.status import DraftStatus
from opensled.messages import DraftBlock

log = logging.getLogger(__name__)

# The constants are chosen; tests/test_adaptive.py shows what they are worth.
LONGEST = 32  # tokens of a block, whatever the server takes
LATEST = 16  # rounds whose draft tokens the status counts
LONG_AGO_S = 10.0  # without a verdict, after which everything learned is in doubt
PACES = 9  # latest draft tokens whose seconds count
REDRAWN = 0.05  # change of the seconds of a draft token for which the law is solved anew
# Assumed of look-ahead before the first round: 3 hits in 8 tries, as many as predicted.
HITS, TRIED = 3.0, 8.0


class Adaptive(DraftLengthPolicy):
    """One lock: several threads call it, for microseconds each."""

    needs_confidence = True  # not for itself: a busy server verifies the likeliest tokens of all devices

    def __init__(
        self,
        length: int = 0,
        look_ahead: bool = True,
        tree: int = 0,
        battery_floor: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
        board: Callable[[], BoardState] | None = None,
    ) -> None:
        """See `LengthOptions`; `clock`: seconds; `board`: returns the board's state at once."""
        self._length, self._look_ahead, self._floor = length or LONGEST, look_ahead, battery_floor
        self._most_nodes = tree
        self._clock, self._board = clock, board or board_watch(clock=clock)
        self._lock = threading.Lock()
        self._link_s: float | None = None  # to open the latest sequence: no round trip takes longer
        self._state = BoardState()
        self._begin()

    def _begin(self) -> None:
        """Nothing is learned yet."""
        self._acceptance, self._times = Acceptance(), RoundTimes()
        self._paces: deque[float] = deque(maxlen=PACES)  # seconds of the latest draft tokens
        self._server_speed = FadingRatio(STREAM)  # tokens per second
        # Look-ahead hits for each one that the chances predict, and for each try.
        self._hits_per_forecast = FadingRatio(ROUNDS, HITS, HITS)
        self._hit_rate = FadingRatio(ROUNDS, HITS, TRIED)
        self._gate, self._trees = DraftGate(), TreeChoice(self._most_nodes)
        self._has_trees = False  # drafter and server, at the latest question
        self._verdicts = VerdictTimes()
        # When the latest verdict on a block came, and when the latest draft token.
        self._heard_at = self._drafted_at = float("-inf")
        self._hint: int | None = None
        self._room = 0  # tokens at the latest question; they end with the answer
        self._asked = self._length  # most tokens of a block since the answer began
        self._latest: deque[tuple[int, int]] = deque(maxlen=LATEST)  # accepted and drafted tokens of a round
        self._basis = (-1, 0)  # rounds and longest block, on which the law rests
        self._solved: DraftLaw
        self._status = DraftStatus(True, NOTHING_YET, UNADVISED)

    @classmethod
    def of(cls, options: LengthOptions) -> Adaptive:
        return cls(options.length, options.look_ahead, options.tree, options.battery_floor)

    # -- questions ----------------------------------------------------------------------------------------

    def most(self, limit: int, hint: int | None = None, ready: int = 0) -> int:
        with self._lock:
            top = self.top(limit, hint)
            if not top or not self._drafts(limit, hint):
                return 0
            if not self._times.rounds:
                return min(top, UNADVISED)
            if ready:
                self._hits_per_forecast.add(1, 0, age=0)
                self._hit_rate.add(1, 0, age=0)
            return min(top, max(1, self._law(top).length(ready) + offset(self._times.rounds)))

    def ahead(self, limit: int, hint: int | None = None) -> int:
        """What a round has time for, but no more than would be sent if it cost nothing."""
        with self._lock:
            top = self.top(limit, hint)
            if not top or self._battery_low():
                return 0
            if not self._times.rounds:
                return min(top, UNADVISED)
            law = self._law(top)
            return min(law.ahead, law.length(top))

    def top(self, limit: int, hint: int | None = None) -> int:
        """Most tokens of a block by room, owner and server."""
        return min(limit, self._length) if hint is None else min(limit, self._length, hint)

    def nodes(self, limit: int, hint: int | None = None) -> int:
        with self._lock:
            top = min(limit, self._most_nodes)
            self._has_trees = top > 0
            if hint == 0 or not self._tree or not self._drafts(top, hint):
                return 0
            return min(top, self._tree)

    @property
    def status(self) -> DraftStatus:
        return self._status

    # -- events -------------------------------------------------------------------------------------------

    def opened(self, seconds: float) -> None:
        with self._lock:
            self._link_s = seconds

    def drafted(self, tokens: int, seconds: float) -> None:
        with self._lock:
            now = self._clock()
            if now - self._drafted_at > LONG_AGO_S:
                self._paces.clear()
            self._drafted_at = now
            for _ in range(tokens):
                self._paces.append(seconds / tokens)

    def answered(self, block: DraftBlock, accepted: int, seconds: float, awaited: bool = True) -> None:
        if not block.tokens:
            return
        with self._lock:
            now = self._clock()
            if now - self._heard_at > LONG_AGO_S:
                self._doubt()
            self._heard_at = now
            self._latest.append((accepted, len(block.tokens)))
            usual_s = len(block.tokens) * (mean_but_largest(self._paces) or 0.0)
            drafting_s = self._verdicts.until(block.base, now - seconds, usual_s)
            if not block.parents:
                self._judged(len(block.tokens), accepted)
            if awaited:
                self._timed(block, accepted, seconds, drafting_s)
            elif not self._times.rounds and (least_s := shortest_round(self._server_speed, self._link_s)):
                self._timed(block, accepted, least_s, drafting_s)
            spent_s = drafting_s + (seconds if awaited else min(seconds, self._times.mean_s))
            self._gate.round_over(now, accepted + 1, spent_s, self._rate(), server_rate(self._server_speed))
            self._verdicts.came(block.base + accepted + 1, now)
            self._tell(self._description())

    def streamed(self, tokens: int, seconds: float) -> None:
        with self._lock:
            streamed(self._server_speed, tokens, seconds)
            self._gate.heard(self._clock(), tokens, seconds, self._rate())

    # -- between two starts -------------------------------------------------------------------------------

    def learned(self) -> Learned | None:
        """See the base class."""
        with self._lock:
            if not self._times.rounds:
                return None
            token_s, speed = mean_but_largest(self._paces), self._server_speed
            return Learned(
                *self._acceptance.numbers,
                self._times.numbers,
                (token_s,) if token_s else (),
                (speed.above, speed.below) if server_rate(speed) else (),
                (self._hits_per_forecast.above, self._hits_per_forecast.below),
                (self._hit_rate.above, self._hit_rate.below),
            )

    def recall(self, learned: Learned) -> None:
        """See the base class. The first verdict puts it in doubt, as after every long silence."""
        with self._lock:
            times = RoundTimes()
            times.recall(learned.times)
            self._times = times
            self._acceptance.recall(learned.tries, learned.hits)
            self._paces.extend(learned.token_s)
            self._hits_per_forecast.recall(*learned.forecasts)
            self._hit_rate.recall(*learned.look_aheads)
            self._server_speed.recall(*(DOUBTFUL * each for each in learned.server))
            self._gate.recall(self._clock(), bool(learned.server))

    def forget(self) -> None:
        """See the base class."""
        with self._lock:
            self._begin()

    # -- below, the caller holds the lock -------------------------------------------------------------------

    def _judged(self, length: int, accepted: int) -> None:
        law = self._law()
        if law.ahead:
            self._hits_per_forecast.add(0, float(law.reach[min(length, law.top) + 1]))
            self._hit_rate.add(0, 1)
        self._acceptance.judged(length, accepted)

    def _timed(self, block: DraftBlock, accepted: int, seconds: float, drafting_s: float) -> None:
        length = len(block.tokens)
        if not block.parents:
            token_s = mean_but_largest(self._paces)
            fresh = min(length, round(drafting_s / token_s)) if token_s else length
            self._times.took(seconds, length, drafting_s, fresh)
        if self._has_trees:
            self._trees.took(length if block.parents else CHAIN, accepted + 1, seconds + drafting_s)

    def _doubt(self) -> None:
        """After a long silence the next few rounds say more than the old ones."""
        self._acceptance.fade(DOUBTFUL)
        if self._times.rounds:
            self._times.fade(DOUBTFUL)

    def _drafts(self, room: int, hint: int | None) -> bool:
        """Whether to draft now, at most `room` tokens. The last blocks of an answer are short, and tell nothing."""
        if room >= self._room:
            self._asked = self.top(room, hint)
        now, self._room = self._clock(), room
        self._notice(now, hint)
        if self._battery_low():
            self._tell(self._description())
            return False
        trials, servers = self._gate.trials, server_rate(self._server_speed)
        drafts = not self._times.rounds or self._gate.drafts(now, self._expected, servers, self._guess)
        if self._gate.trials > trials:
            self._times.doubt()
        self._tell(self._description())
        return drafts

    def _notice(self, now: float, hint: int | None) -> None:
        """Tell the gate of changes that make drafts worth another trial."""
        before, self._state = self._state, self._board()
        freer = before.throttled and not self._state.throttled
        charged = before.discharging and not self._state.discharging
        more = hint is not None and self._hint is not None and hint > self._hint
        self._hint = hint
        if freer or charged or more:
            self._gate.changed(now, much=bool(freer or charged))

    @property
    def _tree(self) -> int:
        """Nodes of a tree that is worth more than a chain; 0 = none is."""
        return self._trees.present if self._has_trees else CHAIN

    def _battery_low(self) -> bool:
        state = self._state
        return state.discharging and state.battery_percent is not None and state.battery_percent < self._floor

    @property
    def _expected(self) -> float:
        """Tokens/s with drafts: of chains, or of trees if they are faster."""
        return max(self._law().rate, self._trees.rate if self._tree else 0.0)

    @property
    def _guess(self) -> float | None:
        """Tokens/s of the server alone, as a round without drafts seems to take; None: the link may be all of that."""
        step_s = 0.0 if self._link_s is None else self._times.base_s - self._link_s
        return 1 / step_s if step_s > 0 else None

    def _rate(self) -> float:
        """Expected tokens/s with drafts."""
        return self._law().rate if self._times.rounds else 0.0

    def _law(self, top: int = 0) -> DraftLaw:
        """Of blocks of at most `top` tokens; 0 = as in the present answer."""
        token_s, top, times = mean_but_largest(self._paces) or 0.0, top or self._asked, self._times
        basis = (times.rounds, top)
        if basis != self._basis or abs(self._solved.token_s - token_s) > REDRAWN * token_s:
            self._basis = basis
            self._solved = DraftLaw(
                self._acceptance.chances(top + 1),
                max(times.base_s, 1e-6),
                times.slope_s,
                token_s,
                times.mean_s,
                top,
                times.hidden,
                self._hits_per_forecast.above / max(self._hits_per_forecast.below, 0.1),
                min(1.0, self._hit_rate.ratio),
                self._look_ahead,
                times.deviations(),
            )
        return self._solved

    def _description(self) -> DraftStatus:
        gate, servers = self._gate, server_rate(self._server_speed)
        if self._battery_low():
            words = battery_words(self._state.battery_percent or 0.0, self._floor)
            return DraftStatus(False, words, server_rate=servers)
        if not self._times.rounds or not (self._latest or gate.server_alone):
            return DraftStatus(True, NOTHING_YET, UNADVISED)
        law, nodes, rests = self._law(), self._tree, gate.server_alone
        decision = Decision(self._expected, servers, gate.lead)
        return DraftStatus(
            not rests,
            resting_words(decision, gate.on_trial)
            if rests
            else self._drafting_words(decision, law.cold, nodes),
            0 if rests else nodes or law.cold,
            decision.expected,
            servers,
            token_seconds=law.token_s,
            acceptance=law.chances[0],
        )

    def _drafting_words(self, decision: Decision, length: int, nodes: int) -> str:
        right = sum(accepted for accepted, _ in self._latest)
        return drafting_words(decision, length, right, sum(drafted for _, drafted in self._latest), nodes)

    def _tell(self, status: DraftStatus) -> None:
        before, self._status = self._status, status
        if before.drafting != status.drafting:
            log.info("%s", status.words, extra=status.figures())
