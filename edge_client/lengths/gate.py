"""Who writes: the device's drafts, or the server alone; and short trials of the other, which cost little.

While one of the two is at work nothing new is heard of the other, so each is tried again now and then. A trial may
cost BUDGET of the time until the next, and the pause between them grows as long as they change nothing.
"""

from __future__ import annotations

# By so much the server must be better before drafts rest, and may still be when they come back. Drafts have the benefit
# of the doubt: the server alone is heard while others draft, and looks faster than it would be without drafts at all.
LEAVE, RETURN = 0.10, 0.05
UNSURE, SURE = 0.5, 4  # the margin before so many rounds were seen
TRIAL = 4  # rounds of a trial of drafts, the first of which mostly comes too late and counts as the way back
LISTEN, PATIENCE_S = 4, 3.0  # tokens of a trial of the server; seconds after which it is given up
FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
BUDGET = 0.015
HOPELESS = 1.5  # times as fast as drafts must the server be for a trial to end at once


class TrialTimer:
    """When the next trial is due."""

    def __init__(self, due: float) -> None:
        self.due = due  # clock time
        self._pause_s, self._ended, self._lost_s = FIRST_PAUSE_S, due, 0.0

    def ended(self, now: float, lost_s: float) -> None:
        """A trial that changed nothing has cost `lost_s`."""
        self.due = now + max(self._pause_s, lost_s / BUDGET)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._ended, self._lost_s = now, lost_s

    def postponed(self, now: float) -> None:
        """What a trial would tell has just been heard for nothing."""
        self.due = max(self.due, now + self._pause_s)

    def reset(self, now: float, paid: bool) -> None:
        """Things have changed: begin anew, at once or as soon as the last trial is paid for."""
        self._pause_s = FIRST_PAUSE_S
        self.due = min(self.due, max(now, self._ended + self._lost_s / BUDGET) if paid else now)


class DraftGate:
    """The state of that choice. Rates in tokens/s, times of the owner's clock."""

    def __init__(self) -> None:
        self.alone = False  # the server writes, but for trials
        self.trial = 0  # rounds of drafts left that are a trial
        self._listening, self._until = 0, 0.0  # tokens of the server left to hear
        self._rounds = 0
        self._lost_s = 0.0  # by the trial under way
        self._drafts_due, self._server_due = TrialTimer(0.0), TrialTimer(0.0)

    def drafts(self, now: float, ours: float, servers: float | None) -> bool:
        """Whether to draft now, where that is expected to give `ours`, and the server alone gives `servers`."""
        if self.alone:
            return self._tries_drafts(now, ours, servers or 0.0)
        if self._listening:
            if now < self._until:
                return False
            self._listened(now)
        margin = LEAVE if self._rounds >= SURE else UNSURE
        if self._rounds and servers is not None and servers > ours * (1 + margin):
            self._leave_it_to_the_server(now)
            return False
        if self._rounds and (servers is None or self._rounds >= SURE) and now >= self._server_due.due:
            # What is far behind needs no trial soon.
            if servers is not None and servers < ours / 2 and now < self._server_due.due + LONGEST_PAUSE_S:
                return True
            self._listening, self._until, self._lost_s = LISTEN, now + PATIENCE_S, 0.0
            return False
        return True

    def _leave_it_to_the_server(self, now: float) -> None:
        self.alone, self.trial, self._listening = True, 0, 0
        self._drafts_due.ended(now, 0.0)

    def _tries_drafts(self, now: float, ours: float, servers: float) -> bool:
        if ours * (1 + RETURN) > servers and not self.trial:
            self.alone = False
            self._server_due.postponed(now)
            return True
        if self.trial or now < self._drafts_due.due:
            return self.trial > 0
        self.trial, self._lost_s = TRIAL, 0.0
        return True

    def round_over(self, now: float, tokens: int, seconds: float, ours: float, servers: float | None) -> None:
        """A round committed so many tokens, and took so long from verdict to verdict."""
        self._rounds += 1
        if not self.trial:
            return
        self._lost_s += seconds - tokens / servers if servers else 0.0
        self.trial -= 1
        if servers is not None and servers > HOPELESS * ours:
            self.trial = 0
        if not self.trial:
            self.alone = servers is not None and servers > ours * (1 + LEAVE)
            self._drafts_due.ended(now, max(0.0, self._lost_s))
            self._server_due.postponed(now)

    def heard(self, now: float, tokens: int, seconds: float, ours: float) -> None:
        """The server decoded so many tokens by itself."""
        if not self._listening:
            self._server_due.postponed(now)
            return
        self._lost_s += seconds - tokens / ours if ours else 0.0
        self._listening = max(0, self._listening - tokens)
        if not self._listening:
            self._listened(now)

    def _listened(self, now: float) -> None:
        self._listening = 0
        self._server_due.ended(now, max(0.0, self._lost_s))

    def changed(self, now: float, much: bool) -> None:
        """The device (`much`), or what the server asks of it, is not what it was when drafts were tried."""
        self._drafts_due.reset(now, paid=not much)
