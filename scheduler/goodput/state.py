"""The state of policy `goodput` between plans: the arms of all sessions, and probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw_profiles.step_cost import HardwareProfile, StepCost
from scheduler.estimates import Forecast
from scheduler.goodput.assignment import Assignment, DraftPlanner, StepLoad
from scheduler.goodput.outcomes import NOTHING_SEEN, SETTLED, Expected, Outcomes, recent
from scheduler.goodput.probes import LENGTH, RESTED, Probe, ProbeCosts
from scheduler.goodput.rounds import NO_DRAFTING, Chosen
from scheduler.plan import SessionView, Slice

# Chosen: between two reviews. A review of 1000 sessions takes some 10 ms, so it comes once a second.
REVIEW_S, EACH_S = 0.25, 1e-3
CHANGE = 0.1  # chosen: share of the sessions that are new or gone, from which on a review comes at once

Lengths = Mapping[int, int]  # by session
Asks = Mapping[int, tuple[int, int]]  # by session: tokens, and the drafter of the server
Source = tuple[int, int]  # a session, and 0 = its device, 1 = the first drafter of the server, and so on


class Wait(NamedTuple):
    """The wait for a device's draft; times of the clock."""

    view: SessionView  # of the session that waits
    expected: float  # when the draft comes
    until: float  # then the session is decoded until it comes


@dataclass(frozen=True)
class GoodputState:
    """The state since the latest review. Times are in seconds on the caller's clock."""

    arms: Mapping[int, int] = field(default_factory=dict)  # of each session
    hints: Lengths = field(default_factory=dict)  # of devices that have drafted
    asks: Asks = field(default_factory=dict)
    load: StepLoad = field(default_factory=StepLoad)
    reviewed: float = -inf
    planned: float = -inf  # the latest plan
    free_since: float = -inf  # the first look after it
    prompts_s: float = 0.0  # seconds that prompts add to the steps since the latest review
    writing: float = 1.0  # share of the latest time that they left
    sessions: int = 0  # at the latest review
    newest: int = -1  # newest session with an arm
    probes: Mapping[Source, Probe] = field(default_factory=dict)
    until: float = -inf  # when the last probe ends
    outcomes: Outcomes = NOTHING_SEEN
    expected: Mapping[int, Expected] = field(default_factory=dict)  # of each session, by the latest review
    # Of the latest plan, until hints change: a session waits for many plans, and its view stays
    waits: Mapping[int, Wait] = field(default_factory=dict)

    def orders(self, now: float) -> tuple[Lengths, Asks]:
        """What devices and the server's drafters are asked for, with probes."""
        if now >= self.until:
            return self.hints, self.asks
        probed = [source for source, probe in self.probes.items() if now < probe.until]
        devices = {id: LENGTH for id, source in probed if not source}
        servers = {id: (LENGTH, source - 1) for id, source in probed if source}
        return {**self.hints, **devices}, {**self.asks, **servers}

    def seen(self, waits: dict[int, Wait], now: float) -> GoodputState:
        """The state at a look at the target, which is free; `waits`: of the sessions that wait for a draft."""
        return replace(
            self, waits=waits, free_since=self.free_since if self.free_since > self.planned else now
        )

    def after(
        self, slices: Sequence[Slice], deciding: Sequence[SessionView], cost: StepCost, now: float
    ) -> GoodputState:
        """The state after a plan with these slices, without those that run ahead."""
        prompts, others = sum([piece.tokens for piece in slices]) - len(slices), len(slices)
        if prompts <= 0:
            return replace(self, planned=now)
        contexts = sum([session.context for session in deciding])
        added_s = cost.verify_s(others + prompts, contexts, others) - cost.verify_s(others, contexts, others)
        return replace(self, planned=now, prompts_s=self.prompts_s + added_s)


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
        return _review(old, sessions, profile, now)
    return _with_new(old, new, profile) if new else old


def _with_new(old: GoodputState, new: Sequence[SessionView], profile: HardwareProfile) -> GoodputState:
    """The state with the best arms of a few new sessions, which do not change the others."""
    planner = DraftPlanner(new, profile, old.outcomes.worth, old.writing)
    arms, hints, asks = _orders(new, planner, planner.response(old.load))
    return replace(
        old,
        arms={**old.arms, **arms},
        hints={**old.hints, **hints},
        asks={**old.asks, **dict.fromkeys(arms, (0, 0)), **asks},
        newest=max(old.newest, new[-1].id),
    )


def _with_written(old: GoodputState, sessions: Sequence[SessionView], now: float) -> GoodputState:
    """The state with what they have written since the latest review, in the time that prompts left."""
    passed, began = now - old.reviewed, now - SETTLED * old.load.step_s
    if not 0 < passed < inf:
        return old
    writing_s = max(0.0, passed - old.prompts_s)
    outcomes = old.outcomes.after(old.expected, sessions, writing_s, began)
    writing = recent(old.writing, writing_s / passed, passed)
    return replace(old, outcomes=outcomes, writing=writing, prompts_s=0.0, expected={})


def _review(
    old: GoodputState, sessions: Sequence[SessionView], profile: HardwareProfile, now: float
) -> GoodputState:
    """The state with the best assignment of all present sessions."""
    newest = max([old.newest, *[one.id for one in sessions[-1:]]])
    present = [session for session in sessions if not session.absent]
    state = replace(
        _with_written(old, present, now), reviewed=now, sessions=len(sessions), newest=newest, waits={}
    )
    if not present:
        return state
    planner = DraftPlanner(present, profile, state.outcomes.worth, state.writing)
    best = planner.best(np.array([old.arms.get(one.id, 0) for one in present]))
    load = planner.load(best)
    arms, hints, asks = _orders(present, planner, best.arms)
    drafts = planner.device[best.arms, planner.all] > 0
    expected = dict(_expect_rates(old, present, best, drafts, state.outcomes.worth, now))
    state = replace(state, arms=arms, hints=hints, asks=asks, load=load, expected=expected)
    pays = cache(partial(_pays, present, profile, state.writing, best.arms))
    probes = dict(_probes(state, present, profile, now, pays))
    return replace(state, probes=probes, until=max([probe.until for probe in probes.values()], default=-inf))


def _expect_rates(
    old: GoodputState,
    sessions: Sequence[SessionView],
    best: Assignment,
    drafts: NDArray[np.bool_],
    worth: float,
    now: float,
) -> Iterator[tuple[int, Expected]]:
    """The forecast for each session that writes; `drafts`: whether its device drafts, `worth`: see outcomes.py."""
    for one, rate, drafted in zip(sessions, best.rates.tolist(), drafts.tolist()):
        before = old.expected.get(one.id)
        since = before.since if before and before.drafts == drafted else now
        if one.uncomputed <= 1:
            yield one.id, Expected(one.context, rate / worth if drafted else rate, drafted, since)


def _orders(
    sessions: Sequence[SessionView], planner: DraftPlanner, arms: Chosen
) -> tuple[dict[int, int], dict[int, int], dict[int, tuple[int, int]]]:
    """The orders of an assignment: the arm of each session, and what its device (if that has drafted) and the server
    are asked for."""
    ids = [session.id for session in sessions]
    device, own = planner.device[arms, planner.all].tolist(), planner.own[arms, planner.all].tolist()
    drafters = planner.drafter[arms].tolist()
    hints = {one.id: length for one, length in zip(sessions, device) if one.device.forecast is not None}
    asks = {id: (length, drafter) for id, length, drafter in zip(ids, own, drafters) if length}
    return dict(zip(ids, arms.tolist())), hints, asks


def _pays(
    sessions: Sequence[SessionView], profile: HardwareProfile, writing: float, present: Chosen, source: int
) -> bool:
    """Whether a source would draft for any session if all its drafts were right, and those of devices at once there."""
    planner = DraftPlanner([_perfect(one, source) for one in sessions], profile, 1.0, writing)
    arms = planner.best(present).arms
    drafted = planner.own[arms, planner.all] * (planner.drafter[arms] == source - 1)
    return bool((drafted if source else planner.device[arms, planner.all]).any())


def _perfect(session: SessionView, source: int) -> SessionView:
    offers = [session.device, *session.servers]
    if offers[source : source + 1] and offers[source].forecast:
        offers[source] = replace(offers[source], forecast=Forecast(1.0, 1.0, 0.0, 0.0), share=1.0)
    return replace(session, device=offers[0], servers=tuple(offers[1:]))


def _probes(
    state: GoodputState,
    sessions: Sequence[SessionView],
    profile: HardwareProfile,
    now: float,
    pays: Callable[[int], bool],
) -> Iterator[tuple[Source, Probe]]:
    """The probes of all sources that may draft and rest; `pays`: see `_pays`."""
    for session in sessions:
        asked, drafter = state.asks.get(session.id, (0, 0))
        ordered = {0: state.hints.get(session.id), 1 + drafter: asked}
        costs_of = (*profile.drafting, *[NO_DRAFTING] * len(session.servers))
        sources = zip((session.device, *session.servers), (None, *costs_of))
        for number, (offer, drafting) in enumerate(sources):
            forecast, source = offer.forecast, (session.id, number)
            if forecast is None or not offer.longest or ordered.get(number):
                continue
            probe = state.probes.get(source)
            if probe is None or now >= probe.due:
                costs = ProbeCosts.of(offer, len(sessions), state.load, drafting)
                # A device whose times are only guesses is asked for its first drafts before it is told to rest, and one
                # that has long rested is asked again: the pause may be longer than all its answers.
                is_due = drafting is None and (not forecast.drafts or forecast.rested > RESTED)
                is_new = not (forecast.drafts if drafting is None else drafting.measured)
                begins = (probe or is_due) and (is_new or pays(number))
                probe = costs.begin(now) if begins else costs.first(session.id, now)
            if drafting is None or drafting.read_s * offer.unread <= state.load.step_s:
                yield source, probe
