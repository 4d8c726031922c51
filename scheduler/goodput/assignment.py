"""Which sessions are to draft, and how much: the law of capacity, applied to everybody who is there.

A session whose draft of k tokens is away for A seconds comes back once in T = A + wait + t, is then in one step of t
seconds, and commits E tokens; one that the server decodes is in every step and commits one. How long a step lasts
depends on who is in it, so t is the fixed point of `t = cost(all that are in a step of t)`. Of the assignments that are
tried (all decode; all draft k; each what is best for its device at today's prices) the one is taken that commits the
most tokens per second, where a session below its promised pace counts as a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw_profiles.profile import HardwareProfile
from scheduler.plan import SessionView

Numbers = NDArray[np.float64]

LENGTHS = (0, 1, 2, 3, 4, 6, 8)  # draft lengths that are tried
ROUNDS = 6  # of the fixed point
PROMPTS_S = 5.0  # seconds over which the rate of prompts is a mean
BETTER = 0.03  # of all tokens/s: by so much another assignment must be better than the present one
PROMISE = 5.0  # times over that tokens count of a session that keeps its pace, up to that pace
RESPONSE = -1  # the rule by which each session gets what is best for its device
HOPELESS = 0.5  # tokens for each step that passes meanwhile: whoever drafts and gets fewer is decoded instead
BLUR = 0.4  # steps are not all equally long, by about this share
# Relative standard deviation of what drafting sessions get, and more of it for each draft token.
SPREAD, WIDER = 0.17, 0.02
STEADY = 0.02  # the same of sessions that are decoded


class PromptLoad(NamedTuple):
    """What comes beside drafts and decoding: some steps have a piece of a prompt in them, most have none."""

    rate: float = 0.0  # prompt tokens/s
    steps: float = 0.0  # steps/s that have some

    def after(self, tokens: int, seconds: float) -> PromptLoad:
        """Running means, `seconds` after the step before, of a step with `tokens` prompt tokens."""
        fade = exp(-seconds / PROMPTS_S)
        return PromptLoad(self.rate * fade + tokens / PROMPTS_S, self.steps * fade + (tokens > 0) / PROMPTS_S)


@dataclass(frozen=True)
class MarginalCosts:
    """What a session's places in steps cost everybody. Seconds of a step for each, and tokens/s for each second."""

    step_s: float = 0.0
    busy: float = 1.0  # mean sessions in a step, at most 1
    token_s: float = 0.0
    context_s: float = 0.0
    session_s: float = 0.0
    slowdown: float = 0.0  # tokens/s that everybody loses if steps become a second longer


NO_COSTS = MarginalCosts()


@dataclass(frozen=True)
class Assignment:
    """What an assignment comes to."""

    rule: int  # how long everybody's drafts are at most, or RESPONSE
    lengths: NDArray[np.int_]  # index into LENGTHS, of each session
    worth: float
    rate: float  # tokens/s of all sessions
    step_s: float
    busy: float  # mean sessions in a step; below 1 the target idles in between


class DraftLengthPlanner:
    """All sessions as columns."""

    def __init__(
        self, sessions: Sequence[SessionView], profile: HardwareProfile, prompts: PromptLoad
    ) -> None:
        self._cost, self._most = profile.cost, profile.max_step_tokens
        self._prompts = prompts
        self._contexts = np.array([one.context for one in sessions], float)
        self._pace = np.array([one.pace for one in sessions], float)
        forecasts = [one.forecast for one in sessions]
        known = [each for each in forecasts if each is not None]
        columns = np.zeros((4, len(sessions)))
        self._longest = np.array([one.max_draft if one.forecast else 0 for one in sessions])
        if known:
            columns[:, [each is not None for each in forecasts]] = np.array([each[:4] for each in known]).T
        first, later, delay, draft = columns
        lengths = np.array(LENGTHS)[:, None]
        powers = np.where(later < 1, (1 - later**lengths) / np.maximum(1 - later, 1e-9), lengths)
        self._tokens = 1 + first * powers  # [length, session]
        drafting = self._longest > 0
        # Alike devices are treated alike: who has had luck with his drafts of late, need not have it again.
        self._usual = (
            self._tokens[:, drafting].mean(axis=1, keepdims=True) if drafting.any() else self._tokens
        )
        self._away = np.where(lengths > 0, delay + lengths * draft, 0.0)
        self._allowed = lengths <= self._longest
        self._all = np.arange(len(sessions))
        # Who still has a prompt to compute is in no step of his own; what he costs is counted with the prompts.
        self._counts = np.array([one.uncomputed == 1 for one in sessions], float)
        if not self._counts.any():
            self._counts[:] = 1.0

    def best(self, rule: int, prices: MarginalCosts) -> tuple[Assignment, Assignment]:
        """What today's rule comes to, and the best one; that is today's unless another is clearly better."""
        kept = self.outcome(rule, prices)
        best = max(self._candidates(kept), key=lambda outcome: outcome.worth)
        return kept, best if best.worth > kept.worth + BETTER * kept.rate else kept

    def _candidates(self, kept: Assignment) -> Iterator[Assignment]:
        uniform = [self.outcome(length) for length in LENGTHS if length <= self._longest.max()]
        yield from uniform
        for start in (kept, max(uniform, key=lambda outcome: outcome.worth)):
            yield self.outcome(RESPONSE, self.prices(start))

    def lengths(self, rule: int, prices: MarginalCosts) -> NDArray[np.int_]:
        """Index into LENGTHS that a rule means for each session, where steps are as `prices` say."""
        lengths = self._by(rule, prices)
        if not prices.step_s:
            return lengths
        return self._spared(lengths, self._shares(prices.step_s, self._away[lengths, self._all], prices.busy))

    def _spared(self, lengths: NDArray[np.int_], share: Numbers) -> NDArray[np.int_]:
        """Whatever the rule for all: nobody drafts who would be hopelessly slower by it than when he is decoded."""
        hopeless = self._tokens[lengths, self._all] * share < HOPELESS
        return np.where(hopeless, 0, lengths)

    def _by(self, rule: int, prices: MarginalCosts) -> NDArray[np.int_]:
        if rule == RESPONSE:
            return np.asarray(self._gains(prices).argmax(axis=0))
        return np.minimum(LENGTHS.index(rule), self._allowed.sum(axis=0) - 1)

    def outcome(self, rule: int, prices: MarginalCosts = NO_COSTS) -> Assignment:
        """What becomes of a rule: the step time that it settles at, and everybody's rate."""
        lengths = self._by(rule, prices)
        step_s, share = self._settled(lengths)
        spared = self._spared(lengths, share)
        if (spared != lengths).any():
            lengths = spared
            step_s, share = self._settled(lengths)
        rates = self._tokens[lengths, self._all] * share / step_s
        rate = float(rates.sum())
        worth = rate + float(self._promised(rates, np.array(LENGTHS)[lengths]).sum())
        return Assignment(rule, lengths, worth, rate, step_s, float(share.sum()))

    def _settled(self, lengths: NDArray[np.int_]) -> tuple[float, Numbers]:
        """Seconds of a step, and each session's share of the steps."""
        away, positions = self._away[lengths, self._all], np.array(LENGTHS)[lengths] + 1.0
        step_s = self._cost.verify_s(1, float(self._contexts.mean()), 1)
        share, turns = np.ones(len(away)), 1.0
        for _ in range(ROUNDS):
            share = self._shares(step_s, away, min(1.0, share.sum()))
            counted = share * self._counts
            load = float((counted * positions).sum())
            turns = max(1.0, load / self._most)  # more than a step holds take turns
            step_s = self._step_s(
                max(1.0, load / turns),
                max(float((counted * self._contexts).sum()) / turns, float(self._contexts.mean())),
                max(1.0, float(counted.sum()) / turns),
                step_s,
            )
        return step_s, share / turns

    def _step_s(self, load: float, contexts: float, sessions: float, last_s: float) -> float:
        """The mean over steps with and without prompts, if steps take about `last_s`."""
        plain_s = self._cost.verify_s(load, contexts, sessions)
        if not self._prompts.steps:
            return plain_s
        tokens = self._prompts.rate / self._prompts.steps
        often = min(1.0, self._prompts.steps * last_s)
        tokens *= max(1.0, self._prompts.steps * last_s)
        return plain_s + often * (self._cost.verify_s(load + tokens, contexts, sessions) - plain_s)

    @staticmethod
    def _shares(step_s: float, away: Numbers, busy: float) -> Numbers:
        """Of the steps, those that each session is in.

        Its verdict leaves when a step ends and the next begins, so its draft misses all steps that begin while it is
        away: it comes back after a whole number of them, blurred where the last one is nearly over.
        """
        steps = away / step_s
        nearest = np.rint(steps)
        missed = np.where(
            np.abs(steps - nearest) < BLUR / 2, nearest + (steps - nearest) / BLUR + 0.5, np.ceil(steps)
        )
        wait = busy * (missed * step_s - away)
        return np.where(away > 0, step_s / (away + np.maximum(0.0, wait) + step_s), 1.0)

    def _promised(self, rates: Numbers, drafted: Numbers) -> Numbers:
        """What promises are worth: PROMISE times the pace, by the chance that it is kept (a normal distribution's)."""
        # Below the pace nobody is counted for his luck, or else the riskiest drafts would seem the best.
        spread = np.where((drafted > 0) & (rates > self._pace), SPREAD + WIDER * drafted, STEADY)
        deviation = spread * rates
        kept = 0.5 + 0.5 * np.tanh(0.8 * (rates - self._pace) / deviation)
        return PROMISE * self._pace * kept

    def prices(self, at: Assignment) -> MarginalCosts:
        """What places in steps cost under that assignment."""
        cost, contexts = self._cost, float(self._contexts.mean())
        drafted = float(np.array(LENGTHS)[at.lengths].mean())
        sessions = max(1.0, at.busy)
        base = (sessions * (drafted + 1), sessions * contexts, sessions)
        now_s = cost.verify_s(*base)
        share = self._shares(at.step_s, self._away[at.lengths, self._all], min(1.0, at.busy))
        rates = self._tokens[at.lengths, self._all] * share / at.step_s
        return MarginalCosts(
            step_s=at.step_s,
            busy=min(1.0, at.busy),
            token_s=(cost.verify_s(base[0] + 8, base[1], base[2]) - now_s) / 8,
            context_s=(cost.verify_s(base[0], base[1] + 1000, base[2]) - now_s) / 1000,
            session_s=cost.verify_s(base[0], base[1], base[2] + 1) - now_s,
            # A longer step slows everybody down in proportion to how much of his round it is.
            slowdown=float((rates * share).sum()) / at.step_s,
        )

    def _gains(self, prices: MarginalCosts) -> Numbers:
        """[length, session]: what each length is worth to everybody, if the others stay as they are."""
        share = self._shares(prices.step_s, self._away, prices.busy)
        rates = self._usual * share / prices.step_s
        positions = np.array(LENGTHS)[:, None] + 1.0
        place_s = (prices.token_s * positions + prices.context_s * self._contexts + prices.session_s) * share
        gains = rates + self._promised(rates, positions - 1) - prices.slowdown * place_s
        return np.where(self._allowed, gains, -np.inf)
