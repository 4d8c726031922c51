"""The policies fcfs and static, as the pure functions they are."""

from math import inf

import pytest

from hw_profiles.step_cost import HardwareProfile
from opensled.core.errors import UsageError
from scheduler import POLICIES, make_policy
from scheduler.fcfs import Fcfs
from scheduler.plan import BatchPlan, PolicyOptions, Slice, Snapshot
from scheduler.static import Static
from tests.views import viewed

PROFILE = HardwareProfile(max_step_tokens=10)


def view(id, uncomputed=1, draft=None, server_drives=False, waiting_since=0.0, **fields):
    return viewed(id, uncomputed, draft, server_drives, waiting_since, **fields)


def plan(*sessions, wait=1.0, now=0.5):
    return Fcfs(wait).plan(Snapshot(sessions), PROFILE, now)


DRIVEN = {"server_drives": True}
# Of fcfs: sessions and options, and the slices, or when it wakes without any.
FCFS = {
    "nobody there: it sleeps until an arrival": ((), {}, inf),
    "drafts are verified and driven sessions decoded in one step": (
        (view(1, draft=4), view(2, **DRIVEN)), {}, (Slice(1, 1, True), Slice(2, 1, True)),
    ),
    "a session waits for its device": ((view(1),), {}, 1.0),
    "and then decodes alone": ((view(1),), {"now": 1.0}, (Slice(1, 1, True),)),
    "waiting for ever": ((view(1),), {"wait": inf, "now": 1e9}, inf),
    "never waiting": ((view(1),), {"wait": 0.0}, (Slice(1, 1, True),)),
    "the earliest waiter wakes the loop": ((view(1, waiting_since=0.4), view(2, waiting_since=0.2)), {}, 1.2),
    "the last chunk of a prompt decides": ((view(1, uncomputed=10, **DRIVEN),), {}, (Slice(1, 10, True),)),
    "lost KV is recomputed while the device drafts, but decides nothing": (
        (view(1, uncomputed=8),), {}, (Slice(1, 7, False, ahead=True),),
    ),
    "what nobody waits for comes last": (
        (view(1, uncomputed=30), view(2, uncomputed=6, **DRIVEN)), {},
        (Slice(2, 6, True), Slice(1, 4, False, ahead=True)),
    ),
    "a slow reader pauses its own session only": (
        (view(1, **DRIVEN, paused=True), view(2, **DRIVEN), view(3, draft=0, paused=True)), {},
        (Slice(2, 1, True), Slice(3, 1, True)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FCFS)
def test_fcfs(name):
    sessions, options, expected = FCFS[name]
    found = plan(*sessions, **options)
    assert found == BatchPlan((), expected) if isinstance(expected, float) else found.slices == expected


def test_a_prompt_is_computed_in_chunks_beside_verification():
    slices = plan(view(1, uncomputed=30, server_drives=True), view(2, draft=4)).slices
    assert slices == (Slice(2, 1, True), Slice(1, 5, False))


# -- static -------------------------------------------------------------------------------------------------------


BUDGET = 20
DRAFTED = tuple(view(id, draft=2, waiting_since=1.0 - id / 10) for id in range(1, 4))
TWO = (view(1, draft=4), view(2, waiting_since=0.2))
# As those of fcfs; slices that are numbers: of these sessions.
STATIC = {
    "nobody there: it sleeps until an arrival": ((), {}, inf),
    "a draft waits for the others": (TWO, {}, 1.2),
    "no longer than their time is up": (TWO, {"now": 1.2}, (Slice(1, 1, True), Slice(2, 1, True, padding=4))),
    "a full batch is padded to its longest draft": (
        (view(1, draft=4), view(2, draft=1), view(3, **DRIVEN)), {},
        (Slice(1, 1, True), Slice(2, 1, True, padding=3), Slice(3, 1, True, padding=4)),
    ),
    "a batch size is not exceeded": ((*DRAFTED, view(4)), {"batch": 2}, (3, 2)),
    "it is waited for": ((*DRAFTED, view(4)), {"batch": 4}, ()),
    "but not in vain": (DRAFTED, {"batch": 8}, (3, 2, 1)),
    "waiting for ever": ((view(1, draft=1), view(2)), {"wait": inf, "now": 1e9}, inf),
    "a prompt is computed before the batch and not in it": (
        (view(1, draft=4), view(2, uncomputed=9, **DRIVEN), view(3, uncomputed=30, draft=2)), {},
        (Slice(2, 9, True), Slice(3, 11, False)),
    ),
    "a long prompt never leaves just one token for later": (
        (view(1, uncomputed=BUDGET + 1, **DRIVEN),), {}, (Slice(1, BUDGET - 1, False),),
    ),
    "two may be left": ((view(1, uncomputed=BUDGET + 2, **DRIVEN),), {}, (Slice(1, BUDGET, False),)),
    "lost KV of a silent device holds nobody up": (
        (view(1, draft=4), view(2, uncomputed=9)), {"batch": 1}, (Slice(1, 1, True),),
    ),
    "nobody waits for readers who are slow or gone": (
        (view(1, draft=2), view(2, **DRIVEN, paused=True), view(3, absent=True)), {}, (Slice(1, 1, True),),
    ),
    "a batch beyond the budget leaves the rest for the next": (
        tuple(view(id, draft=size) for id, size in enumerate([1, 1, 6, 1])), {}, (0, 1),
    ),
    "a draft beyond it is cut": ((view(1, draft=BUDGET + 5),), {}, (Slice(1, 1, True, draft=BUDGET - 1),)),
}  # fmt: skip


@pytest.mark.parametrize("name", STATIC)
def test_static(name):
    sessions, options, expected = STATIC[name]
    options = {"wait": 1.0, "batch": 0, "now": 0.5, **options}
    profile = HardwareProfile(max_step_tokens=BUDGET)
    found = Static(options["wait"], options["batch"]).plan(Snapshot(sessions), profile, options["now"])
    if isinstance(expected, float):
        assert found == BatchPlan((), expected)
    else:
        assert found.slices == expected or [piece.session for piece in found.slices] == [*expected]


def test_policies_are_made_from_what_the_server_is_told():
    assert POLICIES.get("static").of(PolicyOptions(0.5, 3)) == Static(0.5, 3)
    with pytest.raises(UsageError, match="FakeEngine is not a scheduling policy"):
        make_policy("tests.fakes:FakeEngine", PolicyOptions(0.5))
