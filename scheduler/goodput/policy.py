"""The default policy: most expected tokens per second of target time, under every session's promised pace.

Per session and step it verifies a draft, decodes one token, waits for a draft or computes a piece of a prompt. Plain
decoding is always there, so a device that is slow, late, silent or hopeless costs its user a wait now and then until
that is known, and nothing else. Who is to draft, and how much, is looked at anew now and then for everybody together
(scheduler/goodput/assignment.py); a step then follows that outlook.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

from hw_profiles.profile import HardwareProfile
from scheduler.goodput.state import GoodputState, looked
from scheduler.goodput.step_budget import PROMPTS, SURE, in_turn, pays, shortest, urgency, worthwhile
from scheduler.plan import BatchPlan, PolicyOptions, SessionView, Slice, Snapshot

JITTERS = 4.0  # times its usual deviation that a draft may be late
CAUTION = 1.3  # how much likelier than its price a draft token must be: a longer step delays everybody
PRICED = 8  # tokens over which the price of one more is measured


class Parts(NamedTuple):
    """The sessions of a snapshot, by what can be done with them now."""

    deciding: list[SessionView]  # one token to compute, and a draft perhaps
    prompts: list[SessionView]  # more to compute, and somebody waits for it
    ahead: list[SessionView]  # KV to compute again, for which nobody waits yet
    arrivals: list[float]  # when drafts are expected that sessions wait for
    patience: list[float]  # until when these wait; then they are decoded until the draft comes


@dataclass(frozen=True)
class Goodput:
    """`draft_wait`: seconds a session waits for a device of which nothing is known yet."""

    draft_wait: float

    @classmethod
    def of(cls, options: PolicyOptions) -> Goodput:
        return cls(options.draft_wait)

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        view = looked(snapshot.memory, snapshot.sessions, profile, now)
        parts = self._parts(snapshot.sessions, view, now)
        wake_at = min(parts.patience, default=inf)
        join_at = _join_at(parts, profile, now)
        if join_at > now:
            return BatchPlan((), min(wake_at, join_at), view)
        slices = _slices(parts, view, profile)
        view = view.after(slices, now)
        if parts.ahead:
            computed = sum([piece.tokens + (piece.draft or 0) for piece in slices])
            slices += _ahead(parts, profile.max_step_tokens - computed)
        return BatchPlan(tuple(slices), None if wake_at == inf else wake_at, view)

    def _parts(self, sessions: Sequence[SessionView], view: GoodputState, now: float) -> Parts:
        parts = Parts([], [], [], [], [])
        deciding, prompts, ahead, arrivals, patience = parts
        for session in sessions:
            if session.absent:
                continue
            if (
                session.draft is None
                and session.hint
                and not session.server_drives
                and view.hints.get(session.id)
            ):
                expected, until = self._expected(session, view)
                waits = now < until
                if waits and not session.paused:
                    arrivals.append(expected)
                    patience.append(until)
            else:
                waits = False
            if waits or (session.paused and session.draft is None):
                if session.uncomputed > 1:
                    ahead.append(session)
            elif session.uncomputed > 1:
                prompts.append(session)
            else:
                deciding.append(session)
        return parts

    def _expected(self, session: SessionView, view: GoodputState) -> tuple[float, float]:
        """When its draft is expected, and until when it is waited for."""
        forecast, asked = session.forecast, session.asked_since
        if forecast is None or not forecast.drafts:
            return inf, asked + self.draft_wait
        length = session.hint or 0
        # A device knows best what pays for it, and changes its mind in small steps
        if forecast.length is not None:
            length = min(length, forecast.length + 1)
        expected = asked + forecast.away_s(length) + forecast.jitter_s
        # One long outage is no measure of the next.
        late_s = min(JITTERS * forecast.jitter_s, expected - asked)
        return expected, expected + late_s + view.step_s


def _join_at(parts: Parts, profile: HardwareProfile, now: float) -> float:
    """When to start the step: `now`, or a little later if so many drafts are about to come that their waiting for the
    step after would be longer, in sum, than the waiting of those who are ready."""
    ready = parts.deciding
    if not ready or not parts.arrivals or parts.prompts:
        return now
    tokens = sum([1 + (session.draft or 0) for session in ready])
    step_s = profile.cost.verify_s(tokens, sum([session.context for session in ready]), len(ready))
    latest = min([session.ready_since for session in ready]) + step_s / 2
    best, join_at = 0.0, now
    soon = sorted([arrival for arrival in parts.arrivals if now < arrival <= latest])
    for count, arrival in enumerate(soon, 1):
        gain = count * step_s - (count + len(ready)) * (arrival - now)
        if gain > best:
            best, join_at = gain, arrival
    return join_at


def _slices(parts: Parts, view: GoodputState, profile: HardwareProfile) -> list[Slice]:
    """Those that decide, then pieces of prompts with what is left of the step."""
    budget = profile.max_step_tokens
    prompts = sorted(parts.prompts, key=urgency)
    kept = min(ceil(PROMPTS * budget), sum([session.uncomputed for session in prompts]), budget - 1)
    chosen = in_turn(parts.deciding, budget - kept)
    drafts = _cut(chosen, budget - kept - len(chosen), view, profile)
    budget -= len(chosen) + sum(drafts)
    slices = [
        Slice(session.id, 1, True, False, 0, draft, hint)
        for session, draft, hint in zip(chosen, drafts, _hints(chosen, view))
    ]
    for session, hint in zip(prompts, _hints(prompts, view)):
        if budget <= 0:
            break
        tokens = min(session.uncomputed, budget)
        decide = tokens == session.uncomputed
        draft = min(_draft(session), budget - tokens) if decide else 0
        budget -= tokens + draft
        slices.append(Slice(session.id, tokens, decide, draft=draft, hint=hint))
    return slices


def _cut(chosen: Sequence[SessionView], room: int, view: GoodputState, profile: HardwareProfile) -> list[int]:
    """How much of each one's draft is verified: what there is room for, and what is worth its while."""
    drafts = [_draft(each) if each.draft else 0 for each in chosen]
    drafted = sum(drafts)
    if not drafted:
        return drafts
    if drafted > room:
        longest = shortest(drafts, room)
        drafts = [draft if draft <= longest else longest for draft in drafts]
    price = CAUTION * _price(chosen, drafts, view, profile)
    if price <= 0:
        return drafts
    asked = [bool(view.hints.get(each.id)) for each in chosen]
    forecasts = [each.forecast or SURE for each in chosen]
    kept = worthwhile(drafts, forecasts, asked, price)
    for index, each in enumerate(chosen):
        draft = drafts[index]
        if each.depth and pays(min(each.depth, draft), draft, forecasts[index], price):
            kept[index] = draft
    return kept


def _draft(session: SessionView) -> int:
    """How much of its draft may be verified; of a tree, whose size has a limit of its own, all or nothing."""
    draft, longest = session.draft or 0, session.max_draft
    return draft if draft <= longest or (session.depth and longest) else longest


def _hints(sessions: Sequence[SessionView], view: GoodputState) -> list[int | None]:
    """What goes with their verdicts; nothing for a device that never drafted."""
    told = view.told.get
    return [
        hint if (hint := told(each.id)) is None or hint <= each.max_draft else each.max_draft
        for each in sessions
    ]


def _price(
    chosen: Sequence[SessionView], drafts: Sequence[int], view: GoodputState, profile: HardwareProfile
) -> float:
    """What one more position costs in tokens that the target could commit instead; 0 while weights are being read."""
    tokens, contexts = len(chosen) + sum(drafts), sum([session.context for session in chosen])
    less = max(1, tokens - PRICED)
    if less == tokens:
        return 0.0
    cost = profile.cost
    seconds = cost.verify_s(tokens, contexts, len(chosen)) - cost.verify_s(less, contexts, len(chosen))
    return view.rate * seconds / (tokens - less)


def _ahead(parts: Parts, budget: int) -> list[Slice]:
    """KV that was lost, of sessions that wait: with the `budget` that others leave."""
    slices = []
    for session in parts.ahead:
        tokens = min(session.uncomputed - 1, budget)
        if tokens <= 0:
            break
        budget -= tokens
        slices.append(Slice(session.id, tokens, False, ahead=True))
    return slices
