"""Where a newcomer goes: one rule a test, a table of heartbeats in, a replica out."""

import pytest

from scheduler.cluster.placement import STALE, Heartbeat, Placement, PlacementRequest, choose
from tests.replicas import NOW, beat

KEYS = (b"one", b"two", b"three")


def place(
    *beats: Heartbeat, newcomer: PlacementRequest = PlacementRequest(), recent=(), now: float = NOW
) -> str:
    """Where he goes; the order of the table must not matter."""
    chosen = choose(beats, newcomer, now, recent)
    assert chosen == choose(beats[::-1], newcomer, now, recent)
    return chosen.replica if chosen else ""


def test_the_replica_that_remembers_him_comes_first_though_it_is_full_and_slow():
    home = beat("home", sessions=8, queue_s=9.0)
    assert place(home, beat("other"), newcomer=PlacementRequest(wants="home")) == "home"


@pytest.mark.parametrize("gone", [{"draining": True}, {"at": NOW - STALE}])
def test_a_replica_that_drains_or_is_silent_gets_nobody_not_even_its_own(gone):
    assert place(beat("home", **gone), beat("other"), newcomer=PlacementRequest(wants="home")) == "other"
    assert place(beat("home", **gone)) == ""


def test_a_full_replica_gets_nobody():
    assert place(beat("full", sessions=8), beat("slow", queue_s=9.0)) == "slow"
    assert place(beat("full", sessions=8)) == ""


def test_those_on_their_way_take_places_too():
    sent = [Placement("one", NOW, 10)] * 8
    assert place(beat("one"), recent=sent) == ""


def test_the_shorter_queue_is_better():
    assert place(beat("queue", queue_s=0.5), beat("none", queue_s=0.4)) == "none"


def test_the_faster_step_is_better():
    assert place(beat("slow", step_s=0.03), beat("fast", step_s=0.02)) == "fast"


def test_a_crowd_will_slow_it_down():
    assert place(beat("a", sessions=2), beat("b", sessions=1)) == "b"
    assert place(beat("crowded", step_s=0.010, sessions=6), beat("empty", step_s=0.015)) == "empty"


def test_a_prompt_that_is_there_already_is_worth_its_prefill():
    newcomer = PlacementRequest(length=50, prompt_keys=KEYS)
    holder = beat("holder", prefixes=frozenset(KEYS), queue_s=0.04)  # 48 tokens of 1 ms
    assert place(holder, beat("other"), newcomer=newcomer) == "holder"
    assert place(holder._replace(queue_s=0.06), beat("other"), newcomer=newcomer) == "other"


def test_blocks_count_only_after_all_those_before_them():
    tail = beat("tail", prefixes=frozenset(KEYS[1:]))
    head = beat("head", prefixes=frozenset(KEYS[:1]))
    assert place(tail, head, newcomer=PlacementRequest(length=48, prompt_keys=KEYS)) == "head"


def test_memory_that_is_there_is_better_than_speed():
    newcomer = PlacementRequest(length=100)
    small, slow = beat("small", free_tokens=96), beat("slow", queue_s=1.0)
    assert place(small, slow, newcomer=newcomer) == "slow"
    assert place(small._replace(free_tokens=112), slow, newcomer=newcomer) == "small"


def test_without_memory_anywhere_he_is_served_all_the_same():
    assert place(beat("small", free_tokens=0), newcomer=PlacementRequest(length=100)) == "small"


def test_those_on_their_way_take_memory_and_prefill():
    sent = [Placement("a", NOW, 400)]
    assert place(beat("a"), beat("b", queue_s=0.3), newcomer=PlacementRequest(length=10), recent=sent) == "b"
    roomy = beat("b", queue_s=0.5)
    assert place(beat("a", free_tokens=400), roomy, newcomer=PlacementRequest(length=10), recent=sent) == "b"


def test_a_burst_spreads():
    table, sent = [beat("a"), beat("b"), beat("c", step_s=0.011)], []
    for _ in range(24):
        chosen = choose(table, PlacementRequest(length=20), NOW, sent)
        sent.append(Placement(chosen.replica, NOW, 20))
    assert {name: sum(one.replica == name for one in sent) for name in "abc"} == {"a": 8, "b": 8, "c": 8}
    assert choose(table, PlacementRequest(length=20), NOW, sent) is None


def test_what_a_newer_heartbeat_tells_counts_once():
    sent = [Placement("a", NOW - 1.0, 400)]
    assert place(beat("a"), beat("b", queue_s=0.3), recent=sent) == "a"


def test_he_goes_where_his_model_is():
    other = beat("other", model_id="large", fingerprint="g")
    mine = beat("mine", queue_s=9.0)
    assert place(other, mine, newcomer=PlacementRequest(model_id="tiny")) == "mine"
    assert place(other, mine, newcomer=PlacementRequest(fingerprint="f")) == "mine"


def test_where_nobody_has_his_model_any_replica_may_tell_him():
    assert place(beat("a"), newcomer=PlacementRequest(model_id="large")) == "a"
