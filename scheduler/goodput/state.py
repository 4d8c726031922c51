"""What policy `goodput` remembers from one plan to the next: who drafts how much, probes, and the load of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

import numpy as np

from hw_profiles.fading import faded_rate
from hw_profiles.step_cost import HardwareProfile
from scheduler.goodput.assignment import Chosen, DraftPlanner, PromptLoad, StepLoad
from scheduler.goodput.probes import Probe, pause_s, probed
from scheduler.plan import SessionView, Slice

PROMPTS_S = 5.0  # seconds over which rates of prompts are means
REVIEW_S, EACH_S = 0.25, 1e-3  # between two reviews: seconds, and seconds for each session
CHANGE = 0.1  # share of the sessions that are new or gone, from which on a review comes at once


Source = tuple[int, bool]  # a session, and whether it is the server that drafts for it


class Wait(NamedTuple):
    """For a device's draft; clock times."""

    view: SessionView  # of the session that waits
    expected: float  # when the draft comes
    until: float  # then the session is decoded until it comes


@dataclass(frozen=True)
class GoodputState:
    """As of its latest review. Times in seconds on the caller's clock; mappings are by session."""

    arms: Mapping[int, int] = field(default_factory=dict)
    hints: Mapping[int, int] = field(default_factory=dict)  # tokens of each device that has drafted, by its arm
    told: Mapping[int, int] = field(default_factory=dict)  # the hints to give: of probes, and else the same
    asks: Mapping[int, int] = field(default_factory=dict)  # tokens of the server's drafter, those of probes included
    load: StepLoad = StepLoad()
    prompts: PromptLoad = PromptLoad()
    reviewed: float = -inf
    planned: float = -inf  # the latest plan
    sessions: int = 0  # at the latest review
    newest: int = -1  # newest session with an arm
    probes: Mapping[Source, Probe] = field(default_factory=dict)
    # What was found out since hints changed, to be looked up: a session waits for many plans, and its view stays
    waits: dict[int, Wait] = field(default_factory=dict)

    def after(self, slices: Sequence[Slice], now: float) -> GoodputState:
        """After a plan with these slices (without those that run ahead)."""
        tokens = sum([piece.tokens for piece in slices]) - len(slices)
        passed = now - self.planned
        prompts = PromptLoad(
            faded_rate(self.prompts.rate, tokens, passed, PROMPTS_S),
            faded_rate(self.prompts.steps, tokens > 0, passed, PROMPTS_S),
        )
        return replace(self, prompts=prompts, planned=now)


def current(
    memory: object, sessions: Sequence[SessionView], profile: HardwareProfile, now: float
) -> GoodputState:
    """The state in `memory`, or a new one when a review is due or a session has no arm yet.

    A device gets its hint with its first draft: a step may leave out drafts of a device without a hint, and such a
    draft would cost one more step.
    """
    old = memory if isinstance(memory, GoodputState) else GoodputState()
    pause = max(REVIEW_S, EACH_S * len(sessions))
    changed = abs(len(sessions) - old.sessions) > CHANGE * old.sessions
    hints, newest = old.hints, old.newest
    new = [
        one
        for one in sessions
        if one.id > newest or (one.id not in hints and one.device.forecast is not None and not one.absent)
    ]
    if now >= old.reviewed + pause or changed or (new and not old.load.step_s):
        return _reviewed(old, sessions, profile, now)
    return _with_new(old, new, profile) if new else old


def _with_new(old: GoodputState, new: Sequence[SessionView], profile: HardwareProfile) -> GoodputState:
    """With the best arms of a few new sessions, which change nothing for the others."""
    planner = DraftPlanner(new, profile, old.prompts)
    given = _given(new, planner, planner.response(old.load))
    return replace(
        old,
        arms={**old.arms, **given.arms},
        hints={**old.hints, **given.hints},
        told={**old.told, **given.hints},
        asks={**old.asks, **given.asks},
        newest=max(old.newest, new[-1].id),
        waits={} if any(one.id in old.waits for one in new) else old.waits,
    )


def _reviewed(
    old: GoodputState, sessions: Sequence[SessionView], profile: HardwareProfile, now: float
) -> GoodputState:
    """With the best assignment of all present sessions."""
    present = [session for session in sessions if not session.absent]
    state = replace(
        old,
        reviewed=now,
        sessions=len(sessions),
        newest=max([old.newest, *[one.id for one in sessions[-1:]]]),
        waits={},
    )
    if not present:
        return state
    planner = DraftPlanner(present, profile, _prompts(old.prompts, present, profile))
    arms, known = old.arms, len(planner.allowed)
    best = planner.best(np.array([arm if (arm := arms.get(one.id, 0)) < known else 0 for one in present]))
    given, load = _given(present, planner, best.arms), planner.load(best)
    probes = _probes(old.probes, present, (given.hints, given.asks), (load, profile), now)
    told, asks = dict(given.hints), dict(given.asks)
    for (id, is_server), probe in probes.items():
        if probe.length:
            (asks if is_server else told)[id] = probe.length
    return replace(state, arms=given.arms, hints=given.hints, told=told, asks=asks, load=load, probes=probes)


def _probes(
    old: Mapping[Source, Probe],
    sessions: Sequence[SessionView],
    orders: tuple[Mapping[int, int], Mapping[int, int]],
    known: tuple[StepLoad, HardwareProfile],
    now: float,
) -> dict[Source, Probe]:
    """Of the sources that may draft; `orders`: what devices, and the server's drafter, draft by the arms."""
    found, (load, profile) = {}, known
    for session in sessions:
        for offer, is_server in ((session.device, False), (session.server, True)):
            forecast, source = offer.forecast, (session.id, is_server)
            if forecast is None or not offer.longest:
                continue
            drafting = profile.drafting if is_server else None
            pause = pause_s(offer, len(sessions), load.position_s, drafting)
            if orders[is_server].get(session.id):
                found[source] = Probe(now + pause)
            elif not (is_server and drafting and drafting.read_s * offer.unread > load.step_s):
                # A device whose times are only guesses is asked for its first drafts before it is told to rest.
                before = old.get(source) if is_server or forecast.drafts or source in old else Probe(now)
                found[source] = probed(before, session.id, forecast.drafts, pause, now)
    return found


class Given(NamedTuple):
    """What an assignment has each session do."""

    arms: dict[int, int]
    hints: dict[int, int]
    asks: dict[int, int]


def _given(sessions: Sequence[SessionView], planner: DraftPlanner, arms: Chosen) -> Given:
    ids = [session.id for session in sessions]
    device, own = planner.device[arms, planner.all].tolist(), planner.own[arms, planner.all].tolist()
    return Given(
        dict(zip(ids, arms.tolist())),
        {one.id: length for one, length in zip(sessions, device) if one.device.forecast is not None},
        {id: length for id, length in zip(ids, own) if length},
    )


def _prompts(seen: PromptLoad, sessions: Sequence[SessionView], profile: HardwareProfile) -> PromptLoad:
    """The prompts to reckon with: those seen lately, and those that wait, as if they came within PROMPTS_S."""
    waiting = sum([session.uncomputed - 1 for session in sessions])
    steps = waiting / profile.max_step_tokens
    return PromptLoad(seen.rate + waiting / PROMPTS_S, seen.steps + steps / PROMPTS_S)
