"""Admission, snapshot in and answer out: paces are kept, shares are fair, no place is wasted."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw_profiles.step_cost import HardwareProfile, Roofline
from tests.views import viewed
from verify_server.admission.admission_rules import (
    HEADROOM,
    ActiveLoad,
    AdmissionRequest,
    fair_level,
    fair_shares,
    fitting_sessions,
    may_enter,
    places_for,
    reserved_places,
)

# A step of n sessions without context takes 10 ms up to n = 10, and n ms beyond.
COST = Roofline(read_s=0.01, token_s=0.001, context_s=0, session_s=0, overhead_s=0)
PROFILE = HardwareProfile(max_step_tokens=512, cost=COST)


def view(number, **fields):
    return viewed(number, server_drives=True, **fields)


def load(sessions, pace, positions=0):
    return ActiveLoad(sessions, positions * sessions, pace)


# -- paces ------------------------------------------------------------------------------------------------------


def test_as_many_come_in_as_keep_their_pace():
    """At 20 tokens/s a step may take 45 ms: nine tenths of the time between two tokens."""
    assert fitting_sessions(load(1, 20), PROFILE, 256) == 45
    assert fitting_sessions(load(30, 20), PROFILE, 256) == 45
    assert fitting_sessions(load(30, 20), PROFILE, 12) == 12
    assert fitting_sessions(load(30, 0), PROFILE, 256) == 256  # without a pace nobody is promised anything


def test_sessions_take_turns_where_a_step_is_too_small_for_all():
    """8 in a step of 10 ms, so 36 each have their turn every 45 ms."""
    small = HardwareProfile(max_step_tokens=8, cost=COST)
    assert fitting_sessions(load(1, 20), small, 256) == 36


def test_long_contexts_leave_room_for_fewer():
    reading = HardwareProfile(512, Roofline(0.01, 0.001, 1e-6, 0, 0))
    short, long = (fitting_sessions(load(4, 20, length), reading, 256) for length in (100, 10_000))
    assert short == 40 and long == 3  # 1.1 ms each; 10 ms each beside the weights


def test_who_asks_for_more_than_there_is_keeps_nobody_out():
    """An empty server writes 100 tokens/s: a promise of 1,000 counts as one of 50, less the headroom."""
    assert fitting_sessions(load(1, 1000), PROFILE, 256) == fitting_sessions(load(1, 50), PROFILE, 256) == 18
    assert fitting_sessions(load(1, 1000), PROFILE, 256, max_pace=20) == 45
    assert fitting_sessions(load(1, 1000), PROFILE, 256, max_pace=1000) == 1  # as the operator says


def test_the_fastest_promise_counts():
    views = [view(1, pace=5.0), view(2, pace=30.0), view(3)]
    assert ActiveLoad.around(AdmissionRequest("a", pace=10.0), views) == ActiveLoad(4, 3, 30.0)
    assert ActiveLoad.around(AdmissionRequest("a", positions=7, pace=40.0), views) == ActiveLoad(4, 10, 40.0)
    # Whose reader is gone costs nobody pace
    assert ActiveLoad.around(AdmissionRequest("a"), [view(1, pace=9.0, absent=True)]) == ActiveLoad(1, 0, 0.0)


def test_background_sessions_give_way_to_others_and_not_to_each_other():
    views = [view(1, pace=5.0), view(2, background=True, context=100)]
    assert ActiveLoad.around(AdmissionRequest("a"), views) == ActiveLoad(2, 1, 5.0)
    assert ActiveLoad.around(AdmissionRequest("a", background=True), views) == ActiveLoad(3, 102, 5.0)


def test_background_sessions_never_fill_the_last_places():
    assert places_for(AdmissionRequest("a", background=True), 16) == 14
    assert places_for(AdmissionRequest("a"), 16) == 16
    assert places_for(AdmissionRequest("a", background=True), 1) == 1


costs = st.builds(
    Roofline,
    read_s=st.floats(1e-4, 0.1),
    token_s=st.floats(1e-6, 0.01),
    context_s=st.floats(0, 1e-6),
    session_s=st.floats(0, 1e-4),
    overhead_s=st.floats(0, 0.01),
)


@given(costs, st.integers(1, 64), st.integers(1, 64), st.floats(0.1, 200), st.integers(0, 4096))
def test_those_let_in_keep_their_pace_and_one_more_would_not(cost, largest, places, pace, positions):
    profile = HardwareProfile(largest, cost)
    most = fitting_sessions(load(1, pace, positions), profile, places)

    def each_s(sessions):
        together = min(sessions, largest)
        return sessions / together * cost.verify_s(together, together * positions, together)

    promised = min(pace, 0.5 / each_s(1))
    assert 1 <= most <= places
    assert each_s(most) <= HEADROOM / promised * (1 + 1e-9)
    assert most == places or each_s(most + 1) > HEADROOM / promised * (1 - 1e-9)


# -- shares -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "places", "level"),
    [
        ({"a": 3, "b": 4}, 16, inf),
        ({"a": 100, "b": 100}, 16, 8),
        ({"a": 100, "b": 2, "c": 7}, 16, 7),
        ({"a": 100, "b": 2, "c": 70}, 16, 7),
        ({"a": 100, "b": 9}, 3, 1.5),
        ({}, 4, inf),
    ],
)
def test_max_min_fair(wanted, places, level):
    assert fair_level(wanted, places) == level


wants = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 40), min_size=1)


@given(wants, st.integers(1, 40))
def test_the_fair_level_gives_all_places_away(wanted, places):
    level = fair_level(wanted, places)
    given_away = sum(min(count, level) for count in wanted.values())
    assert given_away == pytest.approx(min(places, sum(wanted.values())))


def test_where_places_are_fewer_than_tenants_each_may_have_one():
    waiting = {"b": 3, "c": 3}
    assert fair_shares("a", {"a": 0}, waiting, 2, {})["a"] == 1
    assert not may_enter("a", {"a": 1}, waiting, 2, {}) and may_enter("b", {"a": 1}, waiting, 2, {})


def test_a_place_that_equal_shares_leave_over_goes_to_who_had_the_least_of_late():
    held, waiting, used = (
        {"a": 1, "b": 1, "c": 1},
        {"a": 5, "b": 5, "c": 5},
        {"a": 30.0, "b": 20.0, "c": 10.0},
    )
    assert fair_shares("a", held, waiting, 4, used) == {"a": 1, "b": 1, "c": 2}
    assert [may_enter(name, held, waiting, 4, used) for name in "abc"] == [False, False, True]
    assert may_enter("a", held, {}, 4, used)  # nobody else wants it
    assert fair_shares("a", {}, waiting, 2, used) == {"a": 0, "b": 1, "c": 1}


def test_places_that_nobody_waits_for_are_anybodys():
    assert may_enter("a", {"a": 9}, {}, 10, {})
    assert not may_enter("a", {"a": 10}, {}, 10, {})


def test_a_free_place_is_kept_for_who_has_less_and_waits():
    held, waiting = {"a": 7, "b": 2}, {"b": 1}
    assert not may_enter("a", held, waiting, 10, {})
    assert may_enter("b", held, waiting, 10, {})
    assert may_enter("c", held, waiting, 10, {})  # who has nothing yet
    assert may_enter("a", held, waiting, 11, {})  # two are free, and one of b's waits


def test_no_more_is_kept_than_wait_nor_than_their_share():
    held = {"a": 7, "b": 2}

    def kept(tenant, waiting):
        return reserved_places(tenant, held, waiting, fair_shares(tenant, held, waiting, 12, {}))

    assert kept("a", {"b": 1}) == 1
    assert kept("a", {"b": 90}) == 4
    assert kept("b", {"a": 90, "b": 90}) == 0  # a has his half
    assert fair_shares("b", held, {"a": 90}, 12, {})["b"] == 3  # all he wants
    assert fair_shares("a", held, {"b": 9}, 12, {})["a"] == 6


counts = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 12))


@given(counts, counts, st.integers(1, 30), st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e3)))
def test_while_a_place_is_free_somebody_who_waits_may_have_it(held, waiting, places, used):
    """No place is idle because each waits for the other, and none is given twice."""
    asking = [tenant for tenant, count in waiting.items() if count]
    let_in = [tenant for tenant in asking if may_enter(tenant, held, waiting, places, used)]
    if sum(held.values()) >= places:
        assert not let_in
    elif asking:
        assert let_in
