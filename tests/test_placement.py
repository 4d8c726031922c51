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


HOME = PlacementRequest(wants="home")
OTHER, LARGE = beat("other"), beat("large", model_id="large", fingerprint="g")
MINE, FULL = beat("mine", queue_s=9.0), beat("full", sessions=8)
LONG = PlacementRequest(length=48, prompt_keys=KEYS)
# A table of heartbeats, the newcomer, those on their way, and where he goes.
RULES = {
    "the replica that remembers him comes first though it is full and slow": (
        (beat("home", sessions=8, queue_s=9.0), OTHER), HOME, (), "home",
    ),
    "a replica that drains gets nobody, not even its own": ((beat("home", draining=True), OTHER), HOME, (), "other"),
    "not even where there is no other": ((beat("home", draining=True),), HOME, (), ""),
    "a silent one neither": ((beat("home", at=NOW - STALE), OTHER), HOME, (), "other"),
    "nor alone": ((beat("home", at=NOW - STALE),), HOME, (), ""),
    "a full replica gets nobody": ((FULL, MINE), PlacementRequest(), (), "mine"),
    "nor where it is the only one": ((FULL,), PlacementRequest(), (), ""),
    "those on their way take places too": ((OTHER,), PlacementRequest(), [Placement("other", NOW, 10)] * 8, ""),
    "what a newer heartbeat tells counts once": (
        (OTHER, beat("b", queue_s=0.3)), PlacementRequest(), [Placement("other", NOW - 1.0, 400)], "other",
    ),
    "the shorter queue is better": (
        (beat("a", queue_s=0.5), beat("b", queue_s=0.4)), PlacementRequest(), (), "b",
    ),
    "the faster step is better": ((beat("a", step_s=0.03), beat("b", step_s=0.02)), PlacementRequest(), (), "b"),
    "a crowd will slow it down": ((beat("a", sessions=2), beat("b", sessions=1)), PlacementRequest(), (), "b"),
    "below an empty one that is slower": (
        (beat("a", step_s=0.010, sessions=6), beat("b", step_s=0.015)), PlacementRequest(), (), "b",
    ),
    "blocks count only after all those before them": (
        (beat("tail", prefixes=frozenset(KEYS[1:])), beat("head", prefixes=frozenset(KEYS[:1]))), LONG, (), "head",
    ),
    "without memory anywhere he is served all the same": (
        (beat("a", free_tokens=0),), PlacementRequest(length=100), (), "a",
    ),
    "he goes where his model is": ((LARGE, MINE), PlacementRequest(model_id="tiny"), (), "mine"),
    "by its fingerprint as well": ((LARGE, MINE), PlacementRequest(fingerprint="f"), (), "mine"),
    "where nobody has his model any replica may tell him": ((OTHER,), PlacementRequest(model_id="large"), (), "other"),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_placement(rule):
    beats, newcomer, recent, expected = RULES[rule]
    assert place(*beats, newcomer=newcomer, recent=recent) == expected


def test_a_prompt_that_is_there_already_is_worth_its_prefill():
    newcomer = PlacementRequest(length=50, prompt_keys=KEYS)
    holder = beat("holder", prefixes=frozenset(KEYS), queue_s=0.04)  # 48 tokens of 1 ms
    assert place(holder, beat("other"), newcomer=newcomer) == "holder"
    assert place(holder._replace(queue_s=0.06), beat("other"), newcomer=newcomer) == "other"


def test_memory_that_is_there_is_better_than_speed():
    newcomer = PlacementRequest(length=100)
    small, slow = beat("small", free_tokens=96), beat("slow", queue_s=1.0)
    assert place(small, slow, newcomer=newcomer) == "slow"
    assert place(small._replace(free_tokens=112), slow, newcomer=newcomer) == "small"


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
