"""What every scheduling policy must keep to, and snapshots of every kind to try it on.

A plug-in is done when `require_contract(policy, snapshot, profile, now, promises)` holds for the snapshots of
`snapshots()` and of `crowd()`, one after the other, each with the memory that the last plan left, and when a server
under `Watched(policy, promises)` gives all answers.

**Nobody starves.** A session can be served as soon as its draft has come, the server decodes it without one, or it has
waited `Promises.longest_wait` for its device. From `Promises.gives_way_s` later on it is in one of the next N steps,
whoever comes meanwhile: N = the sum of ceil(uncomputed / E) over all sessions of that moment, where E is an eighth of
the tokens of a step, at least 1. So a step may not pass the session that has waited longest of those with one token to
compute, nor give less than E to the one of those with more.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from math import ceil, inf
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from hw_profiles.step_cost import HardwareProfile, Roofline
from scheduler.estimates import Forecast
from scheduler.plan import BatchPlan, SchedulingPolicy, SessionView, Slice, Snapshot
from tests.views import viewed

NOWS = (0.5, 12345.678, 1e9)  # at the last one a microsecond is hardly more than nothing
AGES = (0.0, 1e-6, 0.004, 0.05, 0.3, 2.0, 90.0, 1e5)  # seconds since something happened
DUES = (-inf, -1e3, -0.01, 0.0, 1e-6, 0.02, 1.0, 1e3, inf)  # seconds from now
CHANCES = (0.0, 0.03, 0.5, 0.8, 1.0)
PACES = (0.0, 0.0, 0.1, 8.0, 50.0, 1e6)
CONTEXTS = (0, 1, 300, 8192, 10**6)
UNCOMPUTED = (1, 1, 1, 2, 3, 17, 500, 40_000)
LENGTHS = (0, 1, 2, 4, 8, 16)
BUDGETS = (1, 2, 7, 64, 512, 10**5)  # max_step_tokens
COSTS = (
    Roofline(),
    Roofline(read_s=0.03, token_s=1e-5),  # bound by memory bandwidth
    Roofline(read_s=1e-4, token_s=3e-3),  # bound by compute
    Roofline(1e-9, 1e-12, 0.0, 0.0, 0.0),  # as good as nothing
    Roofline(5.0, 1.0, 1e-3, 0.1, 1.0),
)


@dataclass(frozen=True)
class Promises:
    """Where policies differ in what they keep."""

    longest_wait: float = 1.0  # seconds it lets pass at most when somebody could be served
    gives_way_s: float = 0.0  # for which it may have a session let others pass
    trims: bool = False  # it verifies no more of a draft than the session may be asked for


class Kind(NamedTuple):
    """What is known of one session before its times: see `SessionView`."""

    uncomputed: int
    draft: int | None
    server_drives: bool
    reader: str  # "reads", "slow" or "gone"
    ages: tuple[float, float]  # since its last verdict, and since its draft came if that is later
    context: int
    pace: float
    due: float  # from now
    background: bool
    hint: int | None
    forecast: Forecast | None
    longest: int
    depth: int  # of its draft at most, which then is a tree; 0 = a chain

    def view(self, id: int, now: float) -> SessionView:
        """The session at `now`; a reader who is gone has no draft pending."""
        since = now - self.ages[0]
        draft = None if self.reader == "gone" else self.draft
        ready = since if draft is None else max(since, now - self.ages[1])
        return viewed(
            id,
            uncomputed=self.uncomputed,
            draft=draft,
            server_drives=self.server_drives,
            waiting_since=since,
            paused=self.reader == "slow",
            absent=self.reader == "gone",
            context=self.context,
            ready_since=ready,
            pace=self.pace,
            due=now + self.due,
            background=self.background,
            hint=self.hint,
            forecast=self.forecast,
            longest=self.longest,
            asked_since=now - max(self.ages),
            depth=min(self.depth, draft or 0),
        )


def _forecast(choose) -> Forecast | None:
    if choose((False, False, True)):
        return None
    seconds = (0.0, 1e-4, 0.03, 0.4, 1e3)
    return Forecast(
        first=choose(CHANCES),
        later=choose(CHANCES),
        delay_s=choose(seconds),
        draft_s=choose(seconds),
        jitter_s=choose(seconds),
        drafts=choose((0, 1, 50)),
    )


def _kind(choose) -> Kind:
    """One session; `choose` picks one of several values."""
    return Kind(
        uncomputed=choose(UNCOMPUTED),
        draft=choose((None, None, *LENGTHS)),
        server_drives=choose((False, True)),
        reader=choose(("reads", "reads", "reads", "slow", "gone")),
        ages=(choose(AGES), choose(AGES)),
        context=choose(CONTEXTS),
        pace=choose(PACES),
        due=choose(DUES),
        background=choose((False, False, True)),
        hint=choose((None, *LENGTHS)),
        forecast=_forecast(choose),
        longest=choose((0, 1, 4, 16)),
        depth=choose((0, 0, 1, 3)),
    )


@st.composite
def snapshots(draw: st.DrawFn, most: int = 8) -> tuple[Snapshot, float]:
    """A few sessions in any states, and the time."""
    now = draw(st.sampled_from(NOWS))
    kinds = draw(
        st.lists(st.builds(_kind, st.just(lambda values: draw(st.sampled_from(values)))), max_size=most)
    )
    return Snapshot(tuple(kind.view(id, now) for id, kind in enumerate(kinds, 1))), now


def profiles() -> st.SearchStrategy[HardwareProfile]:
    return st.builds(HardwareProfile, st.sampled_from(BUDGETS), st.sampled_from(COSTS))


def crowd(seed: int, sessions: int = 300, now: float = 12345.678) -> Snapshot:
    """Many sessions in any states."""
    choose = random.Random(seed).choice
    return Snapshot(tuple(_kind(choose).view(id, now) for id in range(1, sessions + 1)))


def require_contract(
    policy: SchedulingPolicy, snapshot: Snapshot, profile: HardwareProfile, now: float, promises: Promises
) -> BatchPlan:
    """Plan, and assert all that holds for every plan; returns it."""
    before = plain((snapshot, profile, now))
    plan = policy.plan(snapshot, profile, now)
    first = plain(plan)
    assert plain(policy.plan(snapshot, profile, now)) == first, "the same arguments give another plan"
    assert plain(plan) == first, "a later plan changed this one"
    assert plain((snapshot, profile, now)) == before, "planning changed what it was given"
    require_valid(plan, snapshot, profile, now, promises)
    return plan


def require_valid(
    plan: BatchPlan, snapshot: Snapshot, profile: HardwareProfile, now: float, promises: Promises
) -> None:
    """What the plan itself must keep to."""
    views = {view.id: view for view in snapshot.sessions}
    chosen = [piece.session for piece in plan.slices]
    assert len(set(chosen)) == len(chosen), "a session twice in a step"
    for piece in plan.slices:
        require_slice(piece, views[piece.session], promises)
    require_budget(plan.slices, views, profile.max_step_tokens)
    require_wake(plan, snapshot, now, promises)


def require_slice(piece: Slice, view: SessionView, promises: Promises) -> None:
    """What one slice may say of its session."""
    device = view.device
    assert not view.absent, "nobody reads what this computes"
    assert 0 < piece.tokens <= view.uncomputed, "more tokens than are uncomputed, or none"
    assert piece.decide == (piece.tokens == view.uncomputed), (
        "it decides just when it reaches the newest token"
    )
    assert not (piece.decide and view.paused and device.tokens is None), "unasked, though the reader is slow"
    assert piece.padding >= 0, "negative padding"
    assert piece.draft is None or 0 <= piece.draft <= (device.tokens or 0), "more of the draft than there is"
    assert piece.hint is None or 0 <= piece.hint <= device.longest, "a hint that it may not be given"
    # Trees: all or nothing
    longest = (device.tokens or 0) if device.depth and device.longest else device.longest
    assert not promises.trims or verified(piece, view) <= longest, "its drafts are not to be verified"
    assert piece.decide or not piece.draft, "a chunk of a prompt verifies nothing"


def require_budget(slices: tuple[Slice, ...], views: dict[int, SessionView], budget: int) -> None:
    """Positions computed, verified drafts and padding included, stay within max_step_tokens."""
    sizes = [positions(piece, views[piece.session]) for piece in slices]
    assert sum(sizes) <= budget, f"{sum(sizes)} positions in a step of {budget}"


def positions(piece: Slice, view: SessionView) -> int:
    """What one slice has the target compute."""
    return piece.tokens + verified(piece, view) + piece.padding


def verified(piece: Slice, view: SessionView) -> int:
    """Draft tokens among them."""
    pending = (view.device.tokens or 0) if piece.decide else 0
    return pending if piece.draft is None else min(piece.draft, pending)


def require_wake(plan: BatchPlan, snapshot: Snapshot, now: float, promises: Promises) -> None:
    """Nobody is slept over: where a step may turn out empty, time alone must bring on the next one."""
    assert now < plan.wake_at, "no wake_at in the past"
    if any(not piece.ahead for piece in plan.slices):
        return
    served = [view for view in snapshot.sessions if can_be_decided(view)]
    if not served or promises.longest_wait == inf:
        return
    assert plan.wake_at < inf, "the server sleeps until an arrival, and somebody waits for no arrival"
    assert plan.wake_at <= now + promises.longest_wait, "it lets too much time pass"


def can_be_decided(view: SessionView) -> bool:
    """Whether a token may be written for it now."""
    return not view.absent and (view.device.tokens is not None or not view.paused)


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else ()


def plain(value: object) -> object:
    """A copy of plain tuples that can be compared, also where `value` holds arrays."""
    if isinstance(value, int | float | str | None):
        return value
    if isinstance(value, np.ndarray):
        return value.shape, value.tolist()
    if names := _field_names(type(value)):
        return type(value).__name__, [plain(getattr(value, name)) for name in names]
    if isinstance(value, Mapping):
        return [(plain(key), plain(each)) for key, each in value.items()]
    return [plain(each) for each in value] if isinstance(value, tuple | list) else value


class Watched:
    """A policy whose plans must be valid, one after the other, and let nobody starve."""

    def __init__(self, policy: SchedulingPolicy, promises: Promises) -> None:
        self._policy, self._promises = policy, promises
        # Of sessions, each with the time since when it gives way no longer: steps without it, and N when they began
        self._passed: dict[tuple[int, float], tuple[int, int]] = {}

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        plan = self._policy.plan(snapshot, profile, now)
        require_valid(plan, snapshot, profile, now, self._promises)
        served, views = {piece.session for piece in plan.slices}, snapshot.sessions
        if served:
            share = max(1, profile.max_step_tokens // 8)
            new = 0, sum(ceil(view.uncomputed / share) for view in views)
            since = {view.id: self._gave_way(view) for view in views if view.id not in served}
            late = {key: self._passed.get(key, new) for key in since.items() if key[1] <= now}
            self._passed = {key: (steps + 1, most) for key, (steps, most) in late.items()}
            starving = [id for (id, _), (steps, most) in self._passed.items() if steps >= most]
            assert not starving, f"sessions {starving} starve"
        return plan

    def _gave_way(self, view: SessionView) -> float:
        """Since when it can be served, and gives way no longer."""
        if not can_be_decided(view):
            return inf
        waits = not view.server_drives and view.device.tokens is None
        since = view.waiting_since + self._promises.longest_wait if waits else view.ready_since
        return since + self._promises.gives_way_s
