"""The assignment of an arm to each session: the most valuable one. The package's docstring derives the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw_profiles.speculation import Numbers
from hw_profiles.step_cost import HardwareProfile
from scheduler.goodput.rounds import LENGTHS, Chosen, RoundTable
from scheduler.plan import SessionView

ITERATIONS = 6  # chosen: of the fixed point, at most; more change nothing that matters and cost planning time
BLUR = 0.4  # chosen: share of a step over which ceil is smoothed, against trust in exact times
# By which share of its tokens/s a session must gain for a change: of what its device drafts, for at rest that shows
# nothing; and of all else. The former is also what drafts that do not pay may cost a user for long. One user 5 ms from
# a 70B target, simulated: 49.4 tokens/s with 0.03, 49.8 with 0.05. 32 users of 8B on an A100: 2045 tokens/s with 0.005,
# 2031 with 0.02 for the latter.
BETTER, OWN_BETTER = 0.03, 0.005
PROMISE = 5.0  # chosen: what a token below the pace counts for; kept promises come before others' speed
# Chosen: relative spread of tokens/s, of drafting and of decoded sessions; a wider one has those near the pace decoded.
DRAFTING, STEADY = 0.25, 0.025
LEAST = 0.5  # chosen: tokens for each step; no answer gets more than half as slow to speed up others
SOME = LENGTHS[-1]  # positions over which the cost of one more is measured, so that a bend near by counts


class StepLoad(NamedTuple):
    """How busy steps are under an assignment, and what one more place in them costs all sessions."""

    step_s: float = 0.0
    rate: float = 0.0  # tokens/s of all sessions
    sessions: float = 1.0  # mean sessions of a step; below 1 the target idles in between
    position_s: float = 0.0  # of a step, for one more position,
    session_s: float = 0.0  # and for one more session
    slowdown: float = 0.0  # tokens/s that all lose if steps become a second longer
    # Of each drafter of the server, the seconds of passes that so many sessions share; a longer draft pays for its
    # extra passes alone
    passes_s: tuple[float, ...] = (0.0,)
    sharing: tuple[float, ...] = (1.0,)


class Assignment(NamedTuple):
    """The arms of all sessions, and their value."""

    arms: Chosen
    worth: float  # tokens/s of all, and what kept promises count for
    rates: Numbers  # tokens/s of each session
    shares: Numbers  # of the steps, those that each session is in
    step_s: float


class DraftPlanner(RoundTable):
    """Computes the value of a choice of arms, and finds the best one."""

    def __init__(
        self,
        sessions: Sequence[SessionView],
        profile: HardwareProfile,
        worth: float = 1.0,
        writing: float = 1.0,
    ) -> None:
        """`worth`: the worth of a token planned with device drafts; see outcomes.py. `writing`: the share of the time
        that prompts leave, for paces that are promised."""
        super().__init__(sessions, profile.drafting)
        self.tokens = np.where(self.device > 0, worth * self.tokens, self.tokens)
        self._writing = writing
        self._cost, self._step_tokens = profile.cost, profile.max_step_tokens

    def best(self, present: Chosen) -> Assignment:
        """The most valuable assignment; a change must gain BETTER of the tokens/s of the changed sessions."""
        present = np.where(present < len(self.allowed), present, 0)
        present = np.where(self.allowed[present, self.all], present, 0)
        alike = [np.where(allowed, arm, 0) for arm, allowed in enumerate(self.allowed) if allowed.any()]
        kept, *uniform = self.assignments(np.array([present, *alike]))
        margins = self._margins(kept.arms) * kept.rates

        def worth(found: Assignment) -> float:
            return found.worth - float(margins[found.arms, self.all].sum())

        starts = (kept, max(uniform, key=worth))
        best = [self.response(self.load(start), start, margins) for start in starts]
        return max((kept, *uniform, *self.assignments(np.array(best))), key=worth)  # the first of equals

    def _margins(self, present: Chosen) -> Numbers:
        """[arm, session]: the share of its tokens/s that a session must gain for a change from its present arm."""
        drafts = self.device[present, self.all]
        is_other = np.arange(len(self.allowed))[:, None] != present
        stops = (drafts > 0) & (self.device != drafts)
        margins: Numbers = np.where(stops, BETTER, np.where(is_other, OWN_BETTER, 0.0))
        return margins

    def response(
        self, load: StepLoad, at: Assignment | None = None, margins: Numbers | float = 0.0
    ) -> Chosen:
        """The best arm of each session while the others stay. `at`: where these sessions are among those of `load`;
        `margins`: [arm, session] tokens/s that an arm must gain."""
        share = self._shares(load.step_s, self.away, load.sessions - (at.shares if at else 0.0))
        rates = self.tokens * share / load.step_s
        places = load.position_s * self.positions + load.session_s
        shared, among = (self._by_arm(each) for each in (load.passes_s, load.sharing))
        passes_s = np.minimum(self.passes_s, shared) / among + np.maximum(0.0, self.passes_s - shared)
        places = places + passes_s + self.added_s
        gains = rates + self._promise_worth(rates, self.drafts, self.paces) - load.slowdown * share * places
        gains = gains - margins
        gains[~self.allowed] = -np.inf
        gains[1:][(self.tokens * share)[1:] < LEAST] = -np.inf
        best: Chosen = gains.argmax(axis=0)
        return best

    def assignments(self, arms: Chosen) -> list[Assignment]:
        """The assignments with these arms [assignment, session], all at once, for numpy is slow with small arrays.
        Sessions that would be much slower than decoded ones are decoded."""
        step_s, share, turns = self._fixed_points(arms)
        losing = (self.tokens[arms, self.all] * share < LEAST) & (arms > 0)
        if (again := losing.any(axis=1)).any():
            arms = np.where(losing, 0, arms)
            step_s[again], share[again], turns[again] = self._fixed_points(arms[again])
        shares = share / turns
        rates = self.tokens[arms, self.all] * shares / step_s
        promised = self._promise_worth(rates, self.drafts[arms, self.all], self.paces)
        worth = (rates + promised).sum(axis=1).tolist()
        return [Assignment(*each) for each in zip(arms, worth, rates, shares, step_s[:, 0].tolist())]

    def _fixed_points(self, arms: Chosen) -> tuple[Numbers, Numbers, Numbers]:
        """For each row of arms: the seconds of a step [row, 1], the share of steps that each session is in, and the
        number of steps [row, 1] until all sessions have had a turn."""
        away, positions, contexts = self.away[arms, self.all], self.positions[arms, self.all], self.contexts
        added_s, mean = self.added_s[arms, self.all], float(contexts.mean())
        passes_s = sum([each.max(axis=1) for each in self._passes_s(arms)])
        step_s, share = np.full((len(arms), 1), self._cost.verify_s(1, mean, 1)), np.ones(away.shape)
        for _ in range(ITERATIONS):
            last_s, last = step_s, share
            share = self._shares(step_s, away, last.sum(axis=1, keepdims=True) - last)
            present = share / _busy(share)  # in a step that there is
            sums = [(present * each).sum(axis=1) for each in (positions, contexts, 1)]
            loads = np.vstack((*sums, passes_s + (present * added_s).sum(axis=1)))
            found = [self._mean_step(mean, *each) for each in loads.T.tolist()]
            step_s, turns = (np.array(column)[:, None] for column in zip(*found))
            if (step_s == last_s).all() and (share == last).all():
                break
        return step_s, share, turns

    def _mean_step(
        self,
        mean: float,
        load: float,
        contexts: float,
        sessions: float,
        drafting_s: float,
    ) -> tuple[float, float]:
        """The seconds of a step, and the number of steps for all that is to be done. `mean`: of contexts."""
        turns = max(1.0, load / self._step_tokens)
        seconds = self._cost.verify_s(load / turns, max(mean, contexts / turns), max(1.0, sessions / turns))
        return seconds + drafting_s / turns, turns

    @staticmethod
    def _shares(step_s: Numbers | float, away: Numbers, others: Numbers | float) -> Numbers:
        """The share of steps that each session is in. Its draft misses a whole number of steps (smoothed by BLUR), as
        far as the mean share of the `others` keeps the target busy."""
        steps = away / step_s
        nearest = np.rint(steps)
        near = np.abs(steps - nearest) < BLUR / 2
        missed = np.where(near, nearest + (steps - nearest) / BLUR + 0.5, np.ceil(steps))
        wait = np.clip(others, 0.0, 1.0) * (missed * step_s - away)
        return np.where(away > 0, step_s / (away + np.maximum(0.0, wait) + step_s), 1.0)

    def _promise_worth(self, rates: Numbers, drafts: NDArray[np.bool_], paces: Numbers) -> Numbers:
        """PROMISE times the pace, times the chance that it is kept."""
        rates = self._writing * rates
        # A wide spread below the pace would make the riskiest drafts look best.
        spread = np.where(drafts & (rates > paces), DRAFTING, STEADY)
        return PROMISE * paces * (0.5 + 0.5 * np.tanh((rates - paces) / (spread * rates)))

    def load(self, at: Assignment) -> StepLoad:
        """How busy steps are under that assignment."""
        cost, share = self._cost, at.shares
        present = share / _busy(share)
        sessions = max(1.0, float(present.sum()))
        positions = float(present @ self.positions[at.arms, self.all])
        contexts = max(float(self.contexts.mean()), float(present @ self.contexts))
        passes_s = self._passes_s(at.arms)
        now_s = cost.verify_s(positions, contexts, sessions)
        another_s = cost.verify_s(positions, contexts * (1 + 1 / sessions), sessions + 1)
        return StepLoad(
            at.step_s,
            float(at.rates.sum()),
            float(share.sum()),
            (cost.verify_s(positions + SOME, contexts, sessions) - now_s) / SOME,
            another_s - now_s,
            float(at.rates @ share) / at.step_s,
            tuple([float(np.sort(each)[-2]) if len(each) > 1 else 0.0 for each in passes_s]),
            tuple([max(1.0, float(np.count_nonzero(each))) for each in passes_s]),
        )

    def _passes_s(self, arms: Chosen) -> list[Numbers]:
        """Of each drafter of the server, the seconds of passes under `arms` [..., session]."""
        drafter, passes_s = self.drafter[arms], self.passes_s[arms, self.all]
        return [np.where(drafter == each, passes_s, 0.0) for each in range(self.drafter[-1] + 1)]

    def _by_arm(self, values: Sequence[float]) -> Numbers:
        """[arm, 1]: the value of the drafter of each arm; those that are new have the last one's."""
        return np.array(values)[np.minimum(self.drafter, len(values) - 1)][:, None]


def _busy(shares: Numbers) -> Numbers:
    """The chance that at least one session is in a step, for each row; without one there is no step. With 1 user, only
    steps with the draft of this user count."""
    return 1.0 - np.prod(1.0 - shares, axis=-1, keepdims=True)
