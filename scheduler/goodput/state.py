"""What policy `goodput` keeps in mind from one plan to the next: who drafts, who is being probed, prompts to come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw_profiles.profile import HardwareProfile
from scheduler.goodput.assignment import LENGTHS, NO_COSTS, DraftLengthPlanner, MarginalCosts, PromptLoad
from scheduler.plan import SessionView, Slice

NO_PROMPT_LOAD = PromptLoad()
EVERY_S = 0.25  # seconds between two surveys, or
EVERY_STEPS = 8  # so many steps if they take longer, or
DOUBTS = 3  # surveys in a row that must find another assignment better: changing it costs every device a rest
CHANGE = 0.1  # as soon as this share of the sessions is new or gone
GOLDEN = 0.618  # multiples of it are spread evenly over 0 to 1
PROBE_EVERY_S = 10.0  # at least, between two probes of one session
PROBE_EVERY = 50  # and so many times as long as its drafts are away
PROBE_DRAFTS, PROBE_LENGTH = 3, 4  # drafts of a probe, and tokens of each


class Probe(NamedTuple):
    """A session that is decoded, and whose device drafts for a while nevertheless, to hear how it does."""

    drafts: int  # it ends when so many have arrived
    until: float


@dataclass(frozen=True)
class GoodputState:
    """As of the time of its survey. Times in seconds on the caller's clock."""

    hints: Mapping[int, int] = field(default_factory=dict)  # by session, of those whose device drafts
    rate: float = 0.0  # expected tokens/s of everybody
    step_s: float = 0.0  # expected
    surveyed: float = -inf
    sessions: int = 0  # that it is about
    rule: int = 0  # by which hints are given; see survey.py
    prompts: PromptLoad = NO_PROMPT_LOAD
    doubts: int = 0  # surveys in a row that found another assignment better
    planned: float = -inf  # the latest plan
    prices: MarginalCosts = NO_COSTS
    probes: Mapping[int, Probe] = field(default_factory=dict)
    probed: Mapping[int, float] = field(default_factory=dict)  # when each was probed last

    told: Mapping[int, int] = field(default_factory=dict)  # the hints to give, those of probes included
    newest: int = -1  # session it is about

    def after(self, slices: Sequence[Slice], now: float) -> GoodputState:
        """Having planned `slices`, those that somebody waits for."""
        tokens = sum([piece.tokens for piece in slices]) - len(slices)
        return replace(self, prompts=self.prompts.after(tokens, now - self.planned), planned=now)


def looked(
    memory: object, sessions: Sequence[SessionView], profile: HardwareProfile, now: float
) -> GoodputState:
    """The outlook in `memory`, or a new one when its time has come."""
    old = memory if isinstance(memory, GoodputState) else GoodputState()
    patience = max(EVERY_S, EVERY_STEPS * old.step_s)
    changed = abs(len(sessions) - old.sessions) > CHANGE * old.sessions
    if now >= old.surveyed + patience or changed:
        return _surveyed(old, sessions, profile, now)
    return _welcomed(old, sessions, profile) if sessions and sessions[-1].id > old.newest else old


def _welcomed(old: GoodputState, sessions: Sequence[SessionView], profile: HardwareProfile) -> GoodputState:
    """With hints for those who came since the survey, by the same rule."""
    new = [session for session in sessions if session.id > old.newest]
    hints = _hints(new, DraftLengthPlanner(new, profile, old.prompts).lengths(old.rule, old.prices))
    told = {**old.told, **hints}
    return replace(old, hints={**old.hints, **hints}, told=told, newest=sessions[-1].id)


def _surveyed(
    old: GoodputState, sessions: Sequence[SessionView], profile: HardwareProfile, now: float
) -> GoodputState:
    here = [session for session in sessions if not session.absent]
    if not here:
        return replace(old, surveyed=now, sessions=len(sessions), newest=sessions[-1].id if sessions else -1)
    survey = DraftLengthPlanner(here, profile, old.prompts)
    kept, best = survey.best(old.rule, old.prices)
    doubts = old.doubts + 1 if best is not kept else 0
    if 0 < doubts < DOUBTS:
        best = kept
    looked = replace(
        old,
        hints=_hints(here, best.lengths),
        rule=best.rule,
        rate=best.rate,
        step_s=best.step_s,
        prices=survey.prices(best),
        doubts=doubts if best is kept else 0,
        surveyed=now,
        sessions=len(sessions),
        newest=sessions[-1].id,
    )
    return _probing(looked, here, now)


def _hints(sessions: Sequence[SessionView], lengths: NDArray[np.int_]) -> dict[int, int]:
    """Of those whose device drafts."""
    longest = np.array(LENGTHS)[lengths].tolist()
    return {
        session.id: min(length, session.max_draft)
        for session, length in zip(sessions, longest)
        if session.forecast is not None
    }


def _probing(now_known: GoodputState, sessions: Sequence[SessionView], now: float) -> GoodputState:
    """End probes that were answered, or that nobody answers; begin those that are due."""
    probes, probed = {}, {}
    for session in sessions:
        forecast, id = session.forecast, session.id
        if forecast is None or not session.max_draft:
            continue
        probe = now_known.probes.get(id)
        if probe is not None and forecast.drafts < probe.drafts and now < probe.until:
            probes[id] = probe
        pause = max(PROBE_EVERY_S, PROBE_EVERY * forecast.away_s(PROBE_LENGTH)) if forecast.drafts else 0.0
        # A newcomer begins anywhere within the pause: else a device whose answers are short would never be probed.
        last = probed[id] = now_known.probed.get(id, now - pause * (id * GOLDEN % 1))
        if now_known.hints[id]:
            probed[id] = now
        elif session.hint == 0 and id not in probes and now >= last + pause:
            probed[id] = now
            probes[id] = Probe(forecast.drafts + PROBE_DRAFTS, now + max(PROBE_EVERY_S, pause) / 4)
    told = {**now_known.hints, **dict.fromkeys(probes, PROBE_LENGTH)}
    return replace(now_known, probes=probes, probed=probed, told=told)
