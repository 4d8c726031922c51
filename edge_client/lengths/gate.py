"""Whether the device drafts or the server decodes alone, chains or trees; and short trials of what is not done now.

While one of the two works nothing new is heard of the other, so each is tried again now and then. A trial may cost
BUDGET of the time until the next one, and the pause between trials doubles as long as they change nothing.
"""

from hw_profiles.fading import FadingRatio

# The constants are chosen. They trade the cost of trials against the time until a change is noticed; the tests of
# trials and of throttled boards in tests/test_adaptive.py hold them.
# Drafts rest when the server is better by LEAVE, and return when it is better by less than RETURN. Drafts have the
# benefit of the doubt: the server is heard while other devices draft, and looks faster than it is without drafts.
LEAVE, RETURN = 0.10, 0.05
UNSURE, SURE = 0.5, 4  # the margin to leave before that many rounds are seen
TRIAL = 4  # rounds of a trial; the first one of drafts mostly comes too late and counts as the way back
LISTEN, LISTEN_S = 4, 3.0  # a trial of the server ends after so many tokens, or seconds
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
# A device rests no longer than this: what had kept it busy may be over.
LONGEST_REST_S = 20.0
BUDGET, LONGEST_DEBT_S = 0.015, 60.0  # seconds in which a trial is paid for at the latest
SAVED_S = 3.0  # seconds that drafts have saved, and that trials may cost beyond their budget, at most
TOO_SLOW = 1.5  # a trial of drafts ends at once where the server is so many times as fast
# Chosen: the gaps keep trials of shapes under 1 % of all rounds in the end.
FIRST_GAP, LONGEST_GAP = 24, 768  # rounds between two trials
HALF_LIFE = 48.0  # rounds after which half of what was measured is forgotten
BETTER = 1.03  # a shape takes over when it is this many times as fast: less is noise
CHAIN = 0  # nodes of the tree that stands for a chain
# One round in so many tries another length, or the times of longer blocks would never be known; at first more often.
TRIES, FIRST_TRIES, FIRST_ROUNDS = 16, 6, 60
OTHERS = (1, -1, 2, -2, 4, -3)  # differences of these lengths from the best one, in turns


def offset(rounds: int) -> int:
    """Added to the best length in the round after so many; mostly 0."""
    turn, since = divmod(rounds, FIRST_TRIES if rounds < FIRST_ROUNDS else TRIES)
    return 0 if since else OTHERS[turn % len(OTHERS)]


class TrialTimer:
    """When the next trial is due."""

    def __init__(self, due: float, longest_s: float = LONGEST_PAUSE_S) -> None:
        self.due, self._longest_s = due, longest_s  # clock time; of the pauses
        self._pause_s, self._ended, self._lost_s = FIRST_PAUSE_S, due, 0.0

    def ended(self, now: float, lost_s: float, again: bool = False) -> None:
        """A trial that changed nothing has cost `lost_s`; `again`: the next one comes as soon as after the first."""
        if again:
            self._pause_s = FIRST_PAUSE_S
        self.due = now + max(self._pause_s, min(lost_s / BUDGET, LONGEST_DEBT_S))
        self._pause_s = min(2 * self._pause_s, self._longest_s)
        self._ended, self._lost_s = now, lost_s

    def postponed(self, now: float) -> None:
        """What a trial would show was just seen without one."""
        self.due = max(self.due, now + self._pause_s)

    def reset(self, now: float, paid: bool) -> None:
        """Conditions have changed: the next trial comes at once, or (`paid`) when the last one is paid for."""
        self._pause_s = FIRST_PAUSE_S
        self.due = min(
            self.due, max(now, self._ended + min(self._lost_s / BUDGET, LONGEST_DEBT_S)) if paid else now
        )


class DraftGate:
    """The state of that decision. Rates in tokens/s, times of the caller's clock in seconds."""

    def __init__(self) -> None:
        self.server_alone = False  # the server decodes alone, except in trials of drafts
        self._trial = 0  # rounds left of a trial of drafts
        self._listening, self._until = 0, 0.0  # tokens left of a trial of the server, and its latest end
        self._rounds = 0
        self.trials = 0  # of drafts, begun so far
        self._lost_s = 0.0  # by the trial under way
        self._saved_s = 0.0  # by drafts before: it pays for trials where a device is busy now and then
        self._drafts_due, self._server_due = TrialTimer(0.0, LONGEST_REST_S), TrialTimer(0.0)

    def drafts(
        self, now: float, draft_rate: float, server_rate: float | None, guess: float | None = None
    ) -> bool:
        """Whether to draft now, where drafts are expected to give `draft_rate`, the server alone `server_rate`, or
        `guess` as long as it was not heard."""
        if self.server_alone:
            return self._tries_drafts(now, draft_rate, server_rate or 0.0)
        if self._listening:
            if now < self._until:
                return False
            self._listened(now)
        if self._rounds and server_rate is not None and server_rate > draft_rate * (1 + self.lead):
            self.server_alone, self._trial, self._listening = True, 0, 0
            self._drafts_due.ended(now, 0.0, again=self._saved_s > 0)
            return False
        if self._rounds and (server_rate is None or self._rounds >= SURE) and now >= self._server_due.due:
            # A server that is far behind needs no trial soon.
            slow = guess if server_rate is None else server_rate
            if (
                slow is not None
                and slow * (1 + UNSURE) < draft_rate
                and now < self._server_due.due + LONGEST_PAUSE_S
            ):
                return True
            self._listening, self._until, self._lost_s = LISTEN, now + LISTEN_S, 0.0
            return False
        return True

    @property
    def lead(self) -> float:
        """The part by which the server must be faster before drafts rest."""
        return LEAVE if self._rounds >= SURE else UNSURE

    @property
    def on_trial(self) -> bool:
        """Whether drafts are tried although the server decodes alone."""
        return self.server_alone and self._trial > 0

    def recall(self, now: float, heard: bool) -> None:
        """Rounds were seen in another start, and (`heard`) the server alone: it needs no trial soon."""
        self._rounds = SURE
        self._server_due.due = now + LONGEST_PAUSE_S * heard

    def _tries_drafts(self, now: float, draft_rate: float, server_rate: float) -> bool:
        if draft_rate * (1 + RETURN) > server_rate and not self._trial:
            self.server_alone = False
            self._server_due.postponed(now)
            return True
        if self._trial or now < self._drafts_due.due:
            return self._trial > 0
        self._trial, self._lost_s, self.trials = TRIAL, 0.0, self.trials + 1
        return True

    def round_over(
        self, now: float, tokens: int, seconds: float, draft_rate: float, server_rate: float | None
    ) -> None:
        """A round committed `tokens` tokens and took `seconds` from verdict to verdict."""
        if not self._rounds:
            self._server_due.due = now
        self._rounds += 1
        if not self._trial:
            if server_rate:
                self._saved_s = min(SAVED_S, max(0.0, self._saved_s + tokens / server_rate - seconds))
            return
        self._lost_s += seconds - tokens / server_rate if server_rate else 0.0
        self._trial -= 1
        if server_rate is not None and server_rate > TOO_SLOW * draft_rate:
            self._trial = 0
        if not self._trial:
            self.server_alone = server_rate is not None and server_rate > draft_rate * (1 + LEAVE)
            paid_s = min(self._saved_s, max(0.0, self._lost_s))
            self._saved_s -= paid_s
            self._drafts_due.ended(now, max(0.0, self._lost_s) - paid_s, again=self._saved_s > 0)
            self._server_due.postponed(now)

    def heard(self, now: float, tokens: int, seconds: float, draft_rate: float) -> None:
        """The server decoded `tokens` tokens by itself in `seconds`."""
        if not self._listening:
            self._server_due.postponed(now)
            return
        self._lost_s += seconds - tokens / draft_rate if draft_rate else 0.0
        self._listening = max(0, self._listening - tokens)
        if not self._listening:
            self._listened(now)

    def _listened(self, now: float) -> None:
        self._listening = 0
        self._server_due.ended(now, max(0.0, self._lost_s))

    def changed(self, now: float, much: bool) -> None:
        """The device (`much`), or what the server asks of it, is not what it was when drafts were tried."""
        self._drafts_due.reset(now, paid=not much)


class TreeChoice:
    """Nodes of the next block, at most `most`; 0 = a chain."""

    def __init__(self, most: int) -> None:
        self._sizes = sorted({CHAIN, most // 4, most}) if most else [CHAIN]
        self._speeds = {size: FadingRatio(HALF_LIFE) for size in self._sizes}  # tokens/s of each shape
        self._gap, self._until = FIRST_GAP, TRIAL
        self._rounds = 0
        self._settled, self._on_trial = CHAIN, False
        self.present = self._sizes[-1]

    @property
    def rate(self) -> float:
        """Tokens/s of the present shape, as measured; 0 = not yet."""
        return self._speeds[self.present].ratio

    def took(self, size: int, tokens: int, seconds: float) -> None:
        """A block of `size` nodes committed `tokens` tokens in `seconds`; a tree that was smaller than asked for
        counts as the one that was asked for."""
        if len(self._sizes) == 1:
            return
        shape = CHAIN if size == CHAIN else (self.present or self._sizes[-1])
        self._speeds[shape].add(tokens, seconds)
        self._rounds += 1
        if self._rounds >= self._until:
            self._change()

    def _change(self) -> None:
        """Begin or end a trial."""
        unknown = [size for size in self._sizes if self._speeds[size].seen < TRIAL]
        if unknown:
            self.present, self._until = unknown[-1], self._rounds + TRIAL
            return
        best = max(self._sizes, key=self._rate_of)
        if best != self._settled and self._rate_of(best) > BETTER * self._rate_of(self._settled):
            self._settled, self._gap, self._on_trial = best, FIRST_GAP, False
        elif self._on_trial:
            self._gap, self._on_trial = min(2 * self._gap, LONGEST_GAP), False
        if self.present == self._settled and self._rounds >= self._until:
            self._begin_trial()
        else:
            self.present, self._until = self._settled, self._rounds + self._gap

    def _begin_trial(self) -> None:
        """Try the best of the other shapes."""
        self._on_trial = True
        self.present = max((size for size in self._sizes if size != self._settled), key=self._rate_of)
        self._until = self._rounds + TRIAL

    def _rate_of(self, size: int) -> float:
        return self._speeds[size].ratio
