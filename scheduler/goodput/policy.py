"""The default policy: it maximises the expected tokens per second of target time under the guaranteed paces.

Plain decoding is always possible, so a slow, late, silent or bad device costs its user only a short wait now and then.
A review decides for all sessions together which devices draft, and how much (state.py, assignment.py). Each step
follows the latest review. __init__.py derives the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw_profiles.speculation import Numbers, accepted_tokens
from hw_profiles.step_cost import HardwareProfile, StepCost
from opensled.core.messages import HintReason, Why
from scheduler.estimates import GUESS
from scheduler.goodput.rounds import LENGTHS
from scheduler.goodput.state import GoodputState, Lengths, Wait, current
from scheduler.goodput.step_budget import in_turn, most_valuable, reserve, short_first, urgency, verifiable
from scheduler.plan import BatchPlan, PolicyOptions, SessionView, Slice, Snapshot

LONGEST_WAIT_S = 1.0  # chosen: for a draft, from the departure of the verdict; a user sees a longer pause
PRICES = 64  # chosen: places at most where the cost of a step is asked for; exact where rows are few


class StepCandidates(NamedTuple):
    """The sessions of a snapshot, by the work that is possible now; times of the clock."""

    deciding: list[SessionView]  # one token to compute, and perhaps a draft
    prompts: list[SessionView]  # more tokens to compute, with a reader that waits for the next one
    ahead: list[SessionView]  # lost KV to compute again; the session waits for its device anyway
    awaited: dict[int, Wait]  # of the sessions that wait for a draft


@dataclass(frozen=True)
class Goodput:
    """`draft_wait`: maximum seconds that a session waits for a device that has not drafted yet."""

    draft_wait: float

    @classmethod
    def of(cls, options: PolicyOptions) -> Goodput:
        return cls(options.draft_wait)

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        state = current(snapshot.memory, snapshot.sessions, profile, now)
        candidates = self._candidates(snapshot.sessions, state, now)
        state = state.seen(candidates.awaited, now)
        wake_at = min([wait.until for wait in candidates.awaited.values()], default=inf)
        start_at = _start_at(candidates, profile, state.free_since, now)
        if start_at > now:
            return BatchPlan((), min(wake_at, start_at), state)
        deciding = in_turn(candidates.deciding, now, lambda sessions: _step_s(profile, sessions))
        slices = _slices(deciding, candidates.prompts, state, profile, now)
        state = state.after(slices, deciding, profile.cost, now)
        if candidates.ahead:
            computed = sum([piece.tokens + (piece.draft or 0) for piece in slices])
            slices += _ahead(candidates.ahead, profile.max_step_tokens - computed)
        return BatchPlan(tuple(slices), wake_at, state)

    def _candidates(self, sessions: Sequence[SessionView], state: GoodputState, now: float) -> StepCandidates:
        candidates = StepCandidates([], [], [], {})
        deciding, prompts, ahead, awaited = candidates
        known, hints = state.waits, state.hints
        for session in sessions:
            if session.absent:
                continue
            wait = known.get(session.id)
            if wait is None or wait.view is not session:
                drafts = hints.get(session.id) and session.device.tokens is None and not session.server_drives
                wait = self._wait(session, state) if drafts and session.device.hint != 0 else None
            waits = wait is not None and now < wait.until
            if waits and wait is not None and not session.paused:
                awaited[session.id] = wait
            if waits or (session.paused and session.device.tokens is None):
                if session.uncomputed > 1:
                    ahead.append(session)
            elif session.uncomputed > 1:
                prompts.append(session)
            else:
                deciding.append(session)
        return candidates

    def _wait(self, session: SessionView, state: GoodputState) -> Wait:
        """The time at which its draft is expected, and the end of the wait."""
        device, asked = session.device, session.device.asked_since
        forecast = device.forecast
        if forecast is None or not forecast.drafts:
            return Wait(session, inf, asked + self.draft_wait)
        away_s = forecast.away_s(device.hint or state.hints[session.id]) + forecast.jitter_s
        patience_s = min(away_s + forecast.jitter_s + state.load.step_s, LONGEST_WAIT_S)
        return Wait(session, asked + away_s, asked + patience_s)


def _start_at(candidates: StepCandidates, profile: HardwareProfile, free_since: float, now: float) -> float:
    """The start of the step: `now`, or later if drafts are about to arrive whose total wait for the next step would
    be longer than that of the ready sessions; at most half a step after the target is free and a session ready."""
    ready = candidates.deciding
    if not ready or not candidates.awaited or candidates.prompts:
        return now
    step_s = _step_s(profile, ready)
    soonest = max(free_since, min([session.ready_since for session in ready]))
    latest = soonest + min(step_s / 2, LONGEST_WAIT_S)
    soon = [wait for wait in candidates.awaited.values() if now < wait.expected <= latest]
    soon.sort(key=lambda wait: wait.expected)
    gains = [n * step_s - (n + len(ready)) * (wait.expected - now) for n, wait in enumerate(soon, 1)]
    if max(gains, default=0.0) <= 0.0:
        return now
    last = gains.index(max(gains))
    others, start_at = [each.view for each in soon[: last + 1]], soon[last].expected
    # Two steps in place of one: where each session adds as much to a step, they cost little more.
    two_s = step_s + _step_s(profile, others)
    return start_at if two_s - _step_s(profile, [*ready, *others]) > start_at - now else now


def _step_s(profile: HardwareProfile, sessions: Sequence[SessionView]) -> float:
    """Seconds of a step that decides all of them."""
    drafted = sum([offer.tokens for each in sessions if (offer := each.device).tokens])
    contexts = sum([session.context for session in sessions])
    return profile.cost.verify_s(len(sessions) + drafted, contexts, len(sessions))


def _slices(
    deciding: Sequence[SessionView],
    prompts: Sequence[SessionView],
    state: GoodputState,
    profile: HardwareProfile,
    now: float,
) -> list[Slice]:
    """Slices of sessions that decide, then pieces of prompts with the rest of the step."""
    budget = profile.max_step_tokens
    kept = reserve(deciding, prompts, budget, urgency)
    room = budget - kept
    chosen = deciding if len(deciding) <= room else sorted(deciding, key=urgency)[:room]
    drafts, own = _verified_lengths(chosen, room - len(chosen), state.load.rate, profile)
    budget -= len(chosen) + sum(drafts) + sum(filter(None, own))
    (hints, asks), slices = state.orders(now), []
    for session, draft, mine in zip(chosen, drafts, own):
        hint, why = _hint(session, hints, state, profile)
        slices.append(
            Slice(session.id, 1, True, False, 0, draft, hint, mine, *asks.get(session.id, (0, 0)), why)
        )
    for session in short_first(sorted(prompts, key=urgency), budget):
        if budget <= 0:
            break
        tokens, id = min(session.uncomputed, budget), session.id
        decide = tokens == session.uncomputed
        draft = min(verifiable(session.device), budget - tokens) if decide else 0
        budget -= tokens + draft
        (hint, why), ask = _hint(session, hints, state, profile), asks.get(id, (0, 0)) if decide else (0, 0)
        own_draft = 0 if session.server.tokens else None
        slices.append(Slice(id, tokens, decide, False, 0, draft, hint, own_draft, *ask, why))
    return slices


def _hint(
    session: SessionView, hints: Lengths, state: GoodputState, profile: HardwareProfile
) -> tuple[int | None, Why]:
    """What its device is asked for, and the reason of a rest that begins."""
    hint, device = hints.get(session.id), session.device
    if hint == 0 and device.hint != 0:
        return 0, why_it_rests(session, state.load.sessions - 1, profile.cost, state.outcomes.worth)
    return device.longest if hint and hint > device.longest else hint, None


def _verified_lengths(
    chosen: Sequence[SessionView], room: int, second: float, profile: HardwareProfile
) -> tuple[list[int], list[int | None]]:
    """The verified lengths of each device's draft and of each server draft (None = there is none): the most valuable
    tokens of all of them. `second`: tokens that a second of the target is worth."""
    drafts, own = [0] * len(chosen), list[int | None]([None]) * len(chosen)
    devices = [place for place, each in enumerate(chosen) if each.device.tokens]
    servers = [place for place, each in enumerate(chosen) if each.server.tokens]
    if devices or servers:
        offers = [chosen[place].device for place in devices] + [chosen[place].server for place in servers]
        kept = most_valuable(offers, room, lambda drafted: _price(chosen, drafted, second, profile))
        for place, tokens in zip(devices, kept):
            drafts[place] = tokens
        for place, tokens in zip(servers, kept[len(devices) :]):
            own[place] = tokens
    return drafts, own


def _price(
    chosen: Sequence[SessionView], drafted: NDArray[np.int_], second: float, profile: HardwareProfile
) -> Numbers:
    """The price of the first `drafted` draft tokens in tokens, with `second` tokens for a second. It is exact at PRICES
    points and linear in between, because the cost of an engine that pads its steps has stairs."""
    count, contexts = len(chosen), sum([session.context for session in chosen])
    last = int(drafted[-1])
    knots = [*range(0, last, max(1, last // PRICES)), last]
    seconds = [profile.cost.verify_s(count + knot, contexts, count) for knot in knots]
    return second * np.interp(drafted, knots, seconds)


def _ahead(sessions: Sequence[SessionView], budget: int) -> list[Slice]:
    """Slices that compute lost KV of waiting sessions again, with the `budget` that others leave."""
    slices = []
    for session in sessions:
        tokens = min(session.uncomputed - 1, budget)
        if tokens <= 0:
            break
        budget -= tokens
        slices.append(Slice(session.id, tokens, False, ahead=True))
    return slices


# -- why a device rests, for people


def why_it_rests(session: SessionView, others: float, cost: StepCost, worth: float) -> HintReason:
    """The best draft of the session's device against none, in steps with so many `others`; `worth`: see outcomes.py."""
    forecast = session.device.forecast or GUESS
    if not forecast.drafts:  # its times are guesses
        return HintReason("untried", LENGTHS[0])
    sessions = 1 + others
    contexts = session.context * sessions

    lengths = [length for length in LENGTHS if length <= session.device.longest] or LENGTHS[:1]
    own_s, *steps_s = [cost.verify_s(sessions + length, contexts, sessions) for length in (0, *lengths)]
    accepted = accepted_tokens(*forecast[:2], np.array(lengths))
    rounds_s = [forecast.away_s(length) + each for length, each in zip(lengths, steps_s)]
    gains = own_s * worth * (1 + accepted) / np.array(rounds_s)
    at = int(gains.argmax())
    best, step_s, stands, gain = lengths[at], steps_s[at], float(accepted[at]), float(gains[at])
    # What weighs most: that others read, that few tokens stand, or the longest of three times
    times = {
        "step": step_s - own_s,
        "device": best * forecast.draft_s,
        "link": forecast.delay_s,
    }
    cause = max(times, key=lambda name: times[name])
    if 4 * stands < best:  # chosen: where so few stand, nothing else is to blame
        cause = "acceptance"
    return HintReason(
        "others" if others and gain > 1 else cause,
        best,
        step_s / own_s,
        gain,
        1 / forecast.draft_s if forecast.draft_s else 0.0,
        1 / own_s,
        forecast.delay_s,
        stands,
    )
