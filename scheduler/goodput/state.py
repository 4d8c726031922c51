"""What policy `goodput` remembers from one plan to the next: the assignment, probes, and the load of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from hw_profiles.fading import faded_rate
from hw_profiles.step_cost import DraftingCost, HardwareProfile
from scheduler.goodput.arms import NO_COSTS, RESPONSE, Assignment, MarginalCosts, PromptLoad
from scheduler.goodput.assignment import DraftPlanner
from scheduler.plan import SessionView, Slice

PROMPTS_S = 5.0  # seconds over which rates of prompts are means: follows a burst, ignores a single prompt
DOUBTS = 3  # reviews in a row that must agree, for a change costs every device a pause
# Share of all tokens/s by which another assignment is taken at once: answers are over before slow steps have brought
# so many reviews.
MUCH_BETTER = 0.2
# Seconds between two reviews: so many steps, within these bounds. Prompts make steps longer than what is expected.
EVERY_STEPS, EVERY_S, LATEST_S = 8, 0.25, 1.0
EACH_S = 1e-3  # and as many times this as there are sessions, each of which takes its time of a review
CHANGE = 0.1  # share of the sessions that are new or gone, from which on a review comes at once
PROBE_EVERY_S, PROBE_EVERY = 10.0, 50  # between two probes of a session: seconds, and times its draft is away
# Drafts of a probe and tokens of each: enough for a median, cheap enough to lose.
PROBE_DRAFTS, PROBE_LENGTH = 3, 4
PROBE_READS = 64  # tokens of text that a draft model reads for a probe at most
OWN_PROBE_STEPS = EVERY_STEPS  # of a probe of the server's drafter: until the next review
OWN_PROBE_EVERY_S = 3.0  # between two of a session: not all of them fall on the same text
OWN_PROBES_FROM = 200.0  # steps of a new server before the first one: what is assumed of its drafter will do
GOLDEN = 0.618  # multiples of the golden ratio modulo 1 are spread evenly, and so are the first probes
NO_PROMPT_LOAD = PromptLoad()


@dataclass(slots=True)
class Wait:
    """For a device's draft; clock times."""

    view: SessionView  # of the session that waits
    expected: float  # when the draft comes
    until: float  # then the session is decoded until it comes


@dataclass(frozen=True)
class GoodputState:
    """As of its latest review. Times in seconds on the caller's clock; mappings are by session."""

    hints: Mapping[int, int] = field(default_factory=dict)  # draft lengths of sessions whose device drafts
    asks: Mapping[int, int] = field(default_factory=dict)  # those of sessions for which the server drafts
    # Those of sessions for which the server drafts if the device is late
    late: Mapping[int, int] = field(default_factory=dict)
    rate: float = 0.0  # expected tokens/s of all sessions
    step_s: float = 0.0  # expected
    reviewed: float = -inf
    sessions: int = 0  # at the latest review
    rule: int = 0  # see `Assignment`
    prompts: PromptLoad = NO_PROMPT_LOAD
    doubts: int = 0  # reviews in a row that found another assignment better
    planned: float = -inf  # the latest plan
    costs: MarginalCosts = NO_COSTS  # to which `rule` gave its arms; the same costs give the same arms again
    present_costs: MarginalCosts = NO_COSTS  # where all sessions have those arms
    # Sessions that are decoded, but draft for a while: drafts by which the probe ends, and the time
    probes: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    probed: Mapping[int, float] = field(default_factory=dict)  # when each was probed last
    told: Mapping[int, int] = field(default_factory=dict)  # the hints to give, those of probes included
    newest: int = -1  # newest session with a hint
    # Of sessions for which the server does not draft: until when it does so for a while, and since when it did so last
    own_probes: Mapping[int, float] = field(default_factory=dict)
    own_probed: Mapping[int, float] = field(default_factory=dict)
    own_due: float = OWN_PROBES_FROM  # the number of the step from which on the next such probes may begin
    steps: int = 0  # planned so far
    held: frozenset[int] = frozenset()  # have just come, and the server drafts for them from the next plan on
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
        return replace(self, prompts=prompts, planned=now, steps=self.steps + bool(slices))


def current(
    memory: object,
    sessions: Sequence[SessionView],
    profile: HardwareProfile,
    now: float,
) -> GoodputState:
    """The state in `memory`, or a new one when a review is due or a session has no hint yet.

    A device gets its hint with its first draft. A step may leave out drafts of a device without a hint, and such a
    draft would cost one more step.
    """
    old = memory if isinstance(memory, GoodputState) else GoodputState()
    pause = min(max(EVERY_S, EVERY_STEPS * old.step_s, EACH_S * len(sessions)), LATEST_S)
    changed = abs(len(sessions) - old.sessions) > CHANGE * old.sessions
    new = _new(old, sessions)
    # Without a device that drafts the present rule was never a choice.
    is_first = not old.hints and any(one.device.forecast for one in new)
    if now >= old.reviewed + pause or changed or is_first:
        return _reviewed(old, sessions, profile, now)
    return _with_new(old, sessions, new, profile, now) if new else old


def _new(old: GoodputState, sessions: Sequence[SessionView]) -> list[SessionView]:
    """Those for which it is not decided yet who drafts: of a thousand, most are not among them."""
    hints, held, newest = old.hints, old.held, old.newest
    new = [
        one
        for one in sessions
        if one.id > newest or (one.id not in hints and one.device.forecast is not None and not one.absent)
    ]
    if not held:
        return new
    ids = held.union([one.id for one in new])
    return [one for one in sessions if one.id in ids]


def _with_new(
    old: GoodputState,
    sessions: Sequence[SessionView],
    new: Sequence[SessionView],
    profile: HardwareProfile,
    now: float,
) -> GoodputState:
    """With hints by the same rule for the `new` ones of `sessions`."""
    # Neither a device nor the server can draft for them: there is nothing to decide.
    if all(one.device.forecast is None and one.server.forecast is None for one in new):
        return replace(old, newest=sessions[-1].id, held=frozenset())
    planner = DraftPlanner(new, profile, old.prompts)
    arms = planner.by(old.rule, old.present_costs)
    hints, own = _hints(new, planner.hints(arms)), planner.arms.own[arms]
    asks = _asks(new, own, _waits_from(old, now))
    return replace(
        old,
        hints={**old.hints, **hints},
        asks={**old.asks, **asks},
        told={**old.told, **hints},
        newest=sessions[-1].id,
        held=_held(new, own, asks),
        waits={} if any(one.id in old.waits for one in new) else old.waits,
    )


def _reviewed(
    old: GoodputState,
    sessions: Sequence[SessionView],
    profile: HardwareProfile,
    now: float,
) -> GoodputState:
    """With the best assignment of all present sessions."""
    present = [session for session in sessions if not session.absent]
    if not present:
        return replace(old, reviewed=now, sessions=len(sessions), newest=sessions[-1].id if sessions else -1)
    planner = DraftPlanner(present, profile, _load(old.prompts, present, profile))
    kept, best = planner.best(old.rule, old.costs)
    doubts = old.doubts + 1 if best is not kept else 0
    # Without anyone who drafts the present rule was never a choice; and the server's own drafts change at no cost.
    is_clear = not (old.hints or old.asks) or best.worth > kept.worth + MUCH_BETTER * kept.rate
    is_clear |= not planner.arms.device[[kept.arms, best.arms]].any()
    if 0 < doubts < DOUBTS and not is_clear:
        best = kept
    taken, present_costs = _answered(best, planner)
    own = planner.arms.own[taken.arms]
    asks = _asks(present, own, _waits_from(old, now))
    state = replace(
        old,
        hints=_hints(present, planner.hints(taken.arms)),
        asks=asks,
        rule=taken.rule,
        rate=taken.rate,
        step_s=taken.step_s,
        costs=taken.costs if taken.rule == RESPONSE else present_costs,
        present_costs=present_costs,
        doubts=doubts if best is kept else 0,
        reviewed=now,
        sessions=len(sessions),
        newest=sessions[-1].id,
        held=_held(present, own, asks),
        waits={},
    )
    state = replace(state, late=_late(state, present, planner))
    state = _with_probes(state, present, now)
    return _with_own_probes(state, present, profile.drafting, now) if profile.drafting else state


def _load(seen: PromptLoad, sessions: Sequence[SessionView], profile: HardwareProfile) -> PromptLoad:
    """The prompts to reckon with: those seen lately, and those that wait, as if they came within PROMPTS_S."""
    waiting = sum([session.uncomputed - 1 for session in sessions])
    steps = waiting / profile.max_step_tokens
    return PromptLoad(seen.rate + waiting / PROMPTS_S, seen.steps + steps / PROMPTS_S)


def _answered(best: Assignment, planner: DraftPlanner) -> tuple[Assignment, MarginalCosts]:
    """By rule RESPONSE the answer to the costs that `best` itself makes, if that is better; with the costs it makes.

    An answer that is always taken goes back and forth: short drafts make a position cheap, so all devices draft long,
    which makes it dear, so all draft short.
    """
    costs = planner.marginal_costs(best)
    if best.rule != RESPONSE:
        return best, costs
    answer = planner.assignment(RESPONSE, costs)
    return (answer, planner.marginal_costs(answer)) if answer.worth > best.worth else (best, costs)


def _hints(sessions: Sequence[SessionView], lengths: NDArray[np.int_]) -> dict[int, int]:
    """Of the sessions whose device drafts."""
    return {
        session.id: min(length, session.device.longest)
        for session, length in zip(sessions, lengths.tolist())
        if session.device.forecast is not None
    }


def _waits_from(old: GoodputState, now: float) -> float:
    """The id after which sessions wait a step for their first draft of the server's own; infinity = none does.

    The first of many must not have a long text read as if it were to stay alone. Where the server has just drafted for
    others it is known who is there.
    """
    return inf if old.asks and now - old.planned <= LATEST_S else old.newest


def _asks(sessions: Sequence[SessionView], lengths: NDArray[np.int_], newest: float) -> dict[int, int]:
    """Of the sessions for which the server drafts; one that came after `newest` begins a long text a step later."""
    return {
        session.id: length
        for session, length in zip(sessions, lengths.tolist())
        if length and not (session.id > newest and session.server.unread > PROBE_READS)
    }


def _held(
    sessions: Sequence[SessionView], lengths: NDArray[np.int_], asks: Mapping[int, int]
) -> frozenset[int]:
    """Those that `_asks` leaves out."""
    if len(asks) == np.count_nonzero(lengths):
        return frozenset()
    return frozenset(one.id for one, length in zip(sessions, lengths.tolist()) if length) - asks.keys()


def _late(state: GoodputState, sessions: Sequence[SessionView], planner: DraftPlanner) -> Mapping[int, int]:
    """Of the sessions whose device drafts and the server does not; a new session has none until the next review."""
    if not planner.arms.server_drafts:
        return {}
    lengths = planner.without_devices(state.present_costs).tolist()
    # A device is late for a step or two: that pays for no reading of a long text.
    near = [(one.id, length) for one, length in zip(sessions, lengths) if one.server.unread <= PROBE_READS]
    return {id: length for id, length in near if length and state.hints.get(id) and id not in state.asks}


def _with_probes(state: GoodputState, sessions: Sequence[SessionView], now: float) -> GoodputState:
    """End probes that are answered or too old, and begin those that are due; a device whose times are only guesses is
    asked for its first drafts before it is told to rest."""
    probes, probed = {}, {}
    for session in sessions:
        device, id = session.device, session.id
        forecast = device.forecast
        if forecast is None or not device.longest:
            continue
        probe = state.probes.get(id)
        if probe is not None and forecast.drafts < probe[0] and now < probe[1]:
            probes[id] = probe
        pause = max(PROBE_EVERY_S, PROBE_EVERY * forecast.away_s(PROBE_LENGTH)) if forecast.drafts else 0.0
        # The first probe comes anywhere within the pause: else short answers would never see one.
        last = probed[id] = state.probed.get(id, now - pause * (id * GOLDEN % 1))
        if state.hints[id]:
            probed[id] = now
        elif (device.hint == 0 or not forecast.drafts) and id not in probes and now >= last + pause:
            probed[id] = now
            probes[id] = (forecast.drafts + PROBE_DRAFTS, now + max(PROBE_EVERY_S, pause) / 4)
    told = {**state.hints, **dict.fromkeys(probes, PROBE_LENGTH)}
    return replace(state, probes=probes, probed=probed, told=told)


def _with_own_probes(
    state: GoodputState, sessions: Sequence[SessionView], drafting: DraftingCost, now: float
) -> GoodputState:
    """Where drafts of the server do not pay, it makes some now and then, to notice when they do; for several sessions
    at once, which share its passes, and so seldom that they take a small share of its time."""
    probes, probed, begun, unread = {}, {}, 0, 0
    # A text may be read for a probe if that takes no longer than a step. What it costs makes the next probe later.
    readable = max(PROBE_READS, state.step_s / max(drafting.read_s, 1e-9))
    for session in sessions:
        server, id = session.server, session.id
        if server.forecast is None or server.unread > readable:
            continue
        # The first probe comes anywhere within the pause, as with devices.
        last = probed[id] = state.own_probed.get(id, now - OWN_PROBE_EVERY_S * (id * GOLDEN % 1))
        if id in state.asks:
            probed[id] = now
        elif state.own_probes.get(id, now) > now:
            probes[id] = state.own_probes[id]
        elif now >= last + OWN_PROBE_EVERY_S and state.steps >= state.own_due:
            probed[id] = now
            probes[id] = now + OWN_PROBE_STEPS * state.step_s
            begun, unread = begun + 1, unread + server.unread
    asks = {**state.asks, **dict.fromkeys(probes, PROBE_LENGTH)}
    due = state.own_due
    if begun:  # by steps, not by the clock: a server may have little to do
        spent_s = OWN_PROBE_STEPS * drafting.seconds(PROBE_LENGTH, PROBE_LENGTH * begun, unread)
        due = state.steps + PROBE_EVERY * spent_s / max(state.step_s, 1e-9)
    return replace(state, own_probes=probes, own_probed=probed, own_due=due, asks=asks)
