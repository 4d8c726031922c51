"""The fcfs policy, as the pure function it is."""

from math import inf

from hw_profiles.step_cost import HardwareProfile
from scheduler.fcfs import Fcfs
from scheduler.plan import BatchPlan, Slice, Snapshot
from tests.views import viewed

PROFILE = HardwareProfile(max_step_tokens=10)


def view(id, uncomputed=1, draft=None, server_drives=False, waiting_since=0.0, paused=False):
    return viewed(id, uncomputed, draft, server_drives, waiting_since, paused=paused)


def plan(*sessions, wait=1.0, now=0.5):
    return Fcfs(wait).plan(Snapshot(sessions), PROFILE, now)


def test_nobody_there_sleeps_until_an_arrival():
    assert plan() == BatchPlan((), inf)


def test_drafts_are_verified_and_driven_sessions_decoded_in_one_step():
    assert plan(view(1, draft=4), view(2, server_drives=True)).slices == (
        Slice(1, 1, True),
        Slice(2, 1, True),
    )


def test_a_session_waits_for_its_device_and_then_decodes_alone():
    assert plan(view(1)) == BatchPlan((), 1.0)
    assert plan(view(1), now=1.0).slices == (Slice(1, 1, True),)


def test_waiting_for_ever_and_never_waiting():
    assert plan(view(1), wait=inf, now=1e9) == BatchPlan((), inf)
    assert plan(view(1), wait=0.0).slices == (Slice(1, 1, True),)


def test_the_earliest_waiter_wakes_the_loop():
    assert plan(view(1, waiting_since=0.4), view(2, waiting_since=0.2)).wake_at == 1.2


def test_a_prompt_is_computed_in_chunks_beside_verification():
    slices = plan(view(1, uncomputed=30, server_drives=True), view(2, draft=4)).slices
    assert slices == (Slice(2, 1, True), Slice(1, 5, False))


def test_the_last_chunk_of_a_prompt_decides():
    assert plan(view(1, uncomputed=10, server_drives=True)).slices == (Slice(1, 10, True),)


def test_lost_kv_is_recomputed_while_the_device_drafts_but_decides_nothing():
    assert plan(view(1, uncomputed=8)).slices == (Slice(1, 7, False, ahead=True),)


def test_what_nobody_waits_for_comes_last():
    slices = plan(view(1, uncomputed=30), view(2, uncomputed=6, server_drives=True)).slices
    assert slices == (Slice(2, 6, True), Slice(1, 4, False, ahead=True))


def test_a_slow_reader_pauses_its_own_session_only():
    slices = plan(
        view(1, server_drives=True, paused=True), view(2, server_drives=True), view(3, draft=0, paused=True)
    ).slices
    assert slices == (Slice(2, 1, True), Slice(3, 1, True))
