"""For which sessions who drafts how much, the device or the server: the assignment that is worth most.

scheduler/goodput/__init__.py derives the formulas, and says where the constants come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hw_profiles.speculation import Numbers
from hw_profiles.step_cost import HardwareProfile
from scheduler.goodput.arms import LENGTHS, NO_COSTS, RESPONSE, Assignment, MarginalCosts, PromptLoad
from scheduler.goodput.rounds import RoundTable
from scheduler.plan import SessionView

ROUNDS = 6  # iterations of the fixed point; more change nothing that matters and cost planning time
BLUR = 0.4  # share of a step over which the whole number of missed steps is smoothed
# Positions over which marginal costs are measured: beyond a bend of the cost
TOKENS_STEP, CONTEXTS_STEP = 8, 1000
# Share of all tokens/s by which another assignment must be better: against flapping; where no device drafts, and where
# one does.
OWN_BETTER, BETTER = 0.005, 0.03
# The same, by which the server's own drafts must be better than plain decoding: what they gain is estimated, and those
# who get none wait for longer steps.
DOUBT = 0.03
PROMISE = 5.0  # weight of tokens up to the promised pace, beside 1 for any token: a kept promise comes first
NEEDED = 0.5  # chance that a draft of the server is used, where a device is late (chosen)
# Tokens for each step that passes meanwhile: a session that drafts and gets fewer is decoded instead.
MIN_GAIN = 0.5
# Relative standard deviations of tokens/s: of drafting sessions, more of it for each draft token, of decoded ones.
SPREAD, WIDER, STEADY = 0.17, 0.02, 0.02
LOGISTIC = 0.8  # of tanh: 0.5 + 0.5 * tanh(0.8 x) is the normal distribution's share below x, to 0.02


class DraftPlanner(RoundTable):
    """The law over all sessions at once: what a choice of arms comes to, and which one is worth most."""

    def __init__(
        self,
        sessions: Sequence[SessionView],
        profile: HardwareProfile,
        prompts: PromptLoad,
    ) -> None:
        super().__init__(sessions, profile)
        self._prompts = prompts

    def hints(self, arms: NDArray[np.int_]) -> NDArray[np.int_]:
        """Tokens that each device drafts, where the sessions have these arms."""
        return self._lengths[arms, self._all]

    def best(self, rule: int, costs: MarginalCosts) -> tuple[Assignment, Assignment]:
        """The assignment of the present rule, and the best one; both are the same unless another is clearly better."""
        kept = self.assignment(rule, costs)
        return kept, self.chosen(kept, list(self._candidates(kept)))

    def chosen(self, kept: Assignment, others: Sequence[Assignment]) -> Assignment:
        """The best of `others`, if it is better than `kept` by BETTER, or by OWN_BETTER where only the server's own
        drafts change: no device pauses for that."""
        best = max(others, key=self._trusted)
        better = BETTER if self.arms.device[[kept.arms, best.arms]].any() else OWN_BETTER
        return best if self._trusted(best) > self._trusted(kept) + better * kept.rate else kept

    def _trusted(self, found: Assignment) -> float:
        """What an assignment is worth, less DOUBT."""
        return found.worth - (DOUBT * found.rate if self.arms.own[found.arms].any() else 0.0)

    def _candidates(self, kept: Assignment) -> Iterator[Assignment]:
        uniform = [self.assignment(int(arm)) for arm in np.flatnonzero(self._allowed.any(axis=1))]
        yield from uniform
        for start in (kept, max(uniform, key=lambda one: one.worth)):
            yield self.assignment(RESPONSE, self.marginal_costs(start))

    def by(self, rule: int, costs: MarginalCosts) -> NDArray[np.int_]:
        """The arm that a rule gives each session, where steps are as `costs` say."""
        arms = self._by(rule, costs)
        if not costs.step_s:
            return arms
        return self._without_losers(arms, self._shares(costs.step_s, self._away[arms, self._all], costs.busy))

    def without_devices(self, costs: MarginalCosts) -> NDArray[np.int_]:
        """What the server drafts for each session while its device is late: the best of the arms without a device.

        The device's draft may come first, with which the server's is lost: what it brings counts by the chance NEEDED.
        Promises do not count: a pace is kept by what a session does most of the time.
        """
        lost = (1 - NEEDED) * (self._usual - 1) / costs.step_s
        gains = np.where(self.arms.device[:, None] == 0, self._gains(costs, promises=False) - lost, -np.inf)
        return self.arms.own[gains.argmax(axis=0)]

    def _without_losers(self, arms: NDArray[np.int_], share: Numbers) -> NDArray[np.int_]:
        """0 for the sessions that would be much slower with drafts than without, whatever the rule.

        `share`: of the steps that have a turn for the session, for a decoded one has no other turns.
        """
        losing = self._tokens[arms, self._all] * share < MIN_GAIN
        return np.where(losing, 0, arms)

    def _by(self, rule: int, costs: MarginalCosts) -> NDArray[np.int_]:
        if rule == RESPONSE:
            return np.asarray(self._gains(costs).argmax(axis=0))
        if rule < len(LENGTHS):
            arms = np.arange(rule + 1)[:, None]
            return np.where(self._allowed[: rule + 1], arms, 0).max(axis=0)
        if rule < len(self.arms.own):
            return np.where(self._allowed[rule], rule, 0)
        return np.zeros_like(self._all)  # the server drafts for none of these sessions

    def assignment(self, rule: int, costs: MarginalCosts = NO_COSTS) -> Assignment:
        """What a rule comes to: the step time that it settles at, and the rates of all sessions."""
        arms = self._by(rule, costs)
        step_s, share, turns = self._fixed_point(arms)
        better = self._without_losers(arms, share)
        if (better != arms).any():
            arms = better
            step_s, share, turns = self._fixed_point(arms)
        share = share / turns
        rates = self._tokens[arms, self._all] * share / step_s
        rate = float(rates.sum())
        promised = float(self._promised(rates, self.arms.drafted[arms]).sum())
        return Assignment(rule, arms, rate + promised, rate, step_s, float(share.sum()), costs, promised)

    def _fixed_point(self, arms: NDArray[np.int_]) -> tuple[float, Numbers, float]:
        """Seconds of a step, each session's share of the steps in which it has its turn, and how many steps make a turn
        for all."""
        away, positions = self._away[arms, self._all], self._positions[arms, self._all]
        drafting_s = self._drafting_s(arms)
        step_s = self._cost.verify_s(1, float(self._contexts.mean()), 1)
        share, turns = np.ones(len(away)), 1.0
        for _ in range(ROUNDS):
            share = self._shares(step_s, away, min(1.0, share.sum()))
            counted = share * self._counts
            load = float((counted * positions).sum())
            turns = max(1.0, load / self._step_tokens)  # steps until all had one, if one cannot hold them
            step_s = self._step_s(
                max(1.0, load / turns),
                max(float((counted * self._contexts).sum()) / turns, float(self._contexts.mean())),
                max(1.0, float(counted.sum()) / turns),
                step_s,
            )
            step_s += drafting_s / turns
        return step_s, share, turns

    def _drafting_s(self, arms: NDArray[np.int_]) -> float:
        """Seconds in which the server drafts after a step with all sessions."""
        if not self.arms.server_drafts:
            return 0.0
        passes = float((self.arms.own[arms] * self._counts).max())
        tokens = float((self._own[arms, self._all] * self._counts).sum())
        read = float((self._read[arms, self._all] * self._counts).sum())
        return float(self._drafting.seconds(passes, tokens, read))

    def _step_s(self, load: float, contexts: float, sessions: float, last_s: float) -> float:
        """Mean seconds of steps with and without prompts, if steps take about `last_s`."""
        plain_s = self._cost.verify_s(load, contexts, sessions)
        if not self._prompts.steps:
            return plain_s
        tokens = self._prompts.rate / self._prompts.steps
        often = min(1.0, self._prompts.steps * last_s)
        tokens = min(tokens * max(1.0, self._prompts.steps * last_s), self._step_tokens)
        return plain_s + often * (self._cost.verify_s(load + tokens, contexts, sessions) - plain_s)

    @staticmethod
    def _shares(step_s: float, away: Numbers, busy: float) -> Numbers:
        """Of the steps, those that each session is in; its draft misses a whole number of them, smoothed by BLUR."""
        steps = away / step_s
        nearest = np.rint(steps)
        missed = np.where(
            np.abs(steps - nearest) < BLUR / 2, nearest + (steps - nearest) / BLUR + 0.5, np.ceil(steps)
        )
        wait = busy * (missed * step_s - away)
        return np.where(away > 0, step_s / (away + np.maximum(0.0, wait) + step_s), 1.0)

    def _promised(self, rates: Numbers, drafted: Numbers) -> Numbers:
        """The worth of promises: PROMISE times the pace, by the chance that it is kept (a normal distribution's)."""
        # A wide spread below the pace would make the riskiest drafts look best.
        spread = np.where((drafted > 0) & (rates > self._pace), SPREAD + WIDER * drafted, STEADY)
        deviation = spread * rates
        kept = 0.5 + 0.5 * np.tanh(LOGISTIC * (rates - self._pace) / deviation)
        return PROMISE * self._pace * kept

    def marginal_costs(self, at: Assignment) -> MarginalCosts:
        """What places in steps cost under that assignment."""
        cost, contexts = self._cost, float(self._contexts.mean())
        positions = float(self._positions[at.arms, self._all].mean())
        sessions = max(1.0, at.busy)
        base = (sessions * positions, sessions * contexts, sessions)
        now_s = cost.verify_s(*base)
        share = self._shares(at.step_s, self._away[at.arms, self._all], min(1.0, at.busy))
        rates = self._tokens[at.arms, self._all] * share / at.step_s
        own = np.sort(self.arms.own[at.arms])
        return MarginalCosts(
            step_s=at.step_s,
            busy=min(1.0, at.busy),
            token_s=(cost.verify_s(base[0] + TOKENS_STEP, base[1], base[2]) - now_s) / TOKENS_STEP,
            context_s=(cost.verify_s(base[0], base[1] + CONTEXTS_STEP, base[2]) - now_s) / CONTEXTS_STEP,
            session_s=cost.verify_s(base[0], base[1], base[2] + 1) - now_s,
            slowdown=float((rates * share).sum()) / at.step_s,
            passes=float(self._drafting.passes(own[-2])) if len(own) > 1 else 0.0,
            sharing=max(1.0, float((own > 0).sum())),
        )

    def _gains(self, costs: MarginalCosts, promises: bool = True) -> Numbers:
        """[arm, session]: what each arm is worth to all sessions, if the others stay as they are."""
        share = self._shares(costs.step_s, self._away, costs.busy)
        rates = self._usual * share / costs.step_s
        place_s = costs.token_s * self._positions + costs.context_s * self._contexts + costs.session_s
        own = self._drafting.passes(self.arms.own)
        passes = np.minimum(own, costs.passes) / costs.sharing
        passes = (passes + np.maximum(0.0, own - costs.passes))[:, None]
        place_s = place_s * share + self._drafting.seconds(passes, self._own, self._read)
        gains = rates - costs.slowdown * place_s
        if promises:
            gains = gains + self._promised(rates, self.arms.drafted[:, None])
        return np.where(self._allowed, gains, -np.inf)
