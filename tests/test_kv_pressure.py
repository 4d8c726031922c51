"""Less KV memory than the sequences need together: everybody gets on, and nothing is computed in circles."""

import pytest

from scheduler.plan import Slice
from tests.sessions import Pressed
from verify_server.round.session import Session


def holds(session: Session) -> bool:
    return bool(session.sequence.memory.blocks)


@pytest.mark.usefixtures("each_policy")
def test_sequences_that_wait_for_their_devices_do_not_push_each_other_out():
    """Each would recompute the KV it lost while its device drafts, and take it from the other, for ever."""
    pressed = Pressed(draft_wait=5.0)
    for counter, session in enumerate(pressed.sessions, 1):
        pressed.draft(session, counter)
    assert pressed.work_off(100) < 20
    assert all(len(session.sequence.tokens) > 30 for session in pressed.sessions)


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.usefixtures("each_policy")
def test_everybody_is_finished_all_the_same(prefix_cache):
    pressed = Pressed(draft_wait=5.0, prefix_cache=prefix_cache)
    for session in pressed.sessions:
        pressed.draft(session, 1)
    pressed.must_finish(200)


def resting(count: int, pool: int) -> Pressed:
    """Sequences of two blocks each, computed one after the other, a second apart, whose devices draft now."""
    prompts = [[1 + number] * 7 for number in range(count)]
    pressed = Pressed(100.0, prompts, {"num_blocks": pool, "block_size": 4})
    for session in pressed.sessions:
        pressed.draft(session, 1)
        pressed.step(Slice(session.id, 7, True))
        pressed.now += 1.0
    return pressed


def test_who_has_rested_longest_gives_way_and_only_as_many_as_must():
    pressed = resting(count=5, pool=11)
    pressed.now = 20.0
    pressed.open([9] * 6)
    pressed.step(Slice(5, 6, True))
    assert [holds(session) for session in pressed.sessions] == [False, True, True, True, True, True]


def test_readers_who_are_gone_count_by_when_they_were_served_last():
    pressed = resting(count=4, pool=9)
    pressed.sessions[2].detach()
    pressed.now = 4.0  # 0 and 1 have rested for long, 2 is gone, 3 is in the midst of a round
    for prompt in ([9] * 6, [10] * 6, [11] * 6, [12] * 6):
        pressed.step(Slice(pressed.open(prompt).id, 6, True))
        pressed.sessions[-1].detach()
    assert [holds(session) for session in pressed.sessions[:4]] == [False, False, False, True]


def test_of_those_in_the_midst_of_a_round_the_newest_comer_gives_way():
    """They come round in the order in which they were used last: each would lose its KV just before it needs it."""
    pressed = resting(count=4, pool=9)
    for session in pressed.sessions:
        session.timing.waiting_since = pressed.now - 1.0 + 0.1 * session.id
    pressed.open([9] * 6)
    pressed.step(Slice(4, 6, True))
    assert [holds(session) for session in pressed.sessions] == [True, True, True, False, True]


def test_tenants_with_more_than_their_share_give_way_first():
    pressed = Pressed(100.0, [], {"num_blocks": 12, "block_size": 4})
    owners = ["modest", "greedy", "greedy", "greedy", "greedy"]
    for number, tenant in enumerate(owners):
        session = pressed.open([1 + number] * 7, tenant)
        pressed.draft(session, 1)
        pressed.step(Slice(number, 7, True))
        pressed.now += 1.0
    pressed.now = 20.0
    newcomer = pressed.open([9] * 14, "new")
    pressed.step(Slice(newcomer.id, 14, True))
    assert [holds(session) for session in pressed.sessions] == [True, False, True, True, True, True]


def test_a_tenant_at_his_budget_makes_room_among_his_own():
    pressed = Pressed(5.0, [], {"num_blocks": 40, "block_size": 4})
    other = pressed.open([1] * 7, "other")
    pressed.draft(other, 1)
    pressed.step(Slice(other.id, 7, True))
    pressed.now = 20.0  # the other one has rested for long
    for kind in (2, 3, 4):
        session = pressed.open([kind] * 7, "t", budget=20)  # 5 blocks
        pressed.draft(session, 1)
        pressed.step(Slice(session.id, 7, True))
    assert [holds(session) for session in pressed.sessions] == [True, True, False, True]
    assert pressed.loop.machine.target.pool.num_free > 20
    pressed.must_finish(100)


@pytest.mark.usefixtures("each_policy")
def test_a_tenants_sessions_all_end_within_a_budget_for_one():
    pressed = Pressed(0.0, [], {"num_blocks": 40, "block_size": 4})
    for kind in range(1, 6):
        pressed.open([kind] * 11, "t", budget=23)
    pressed.open([9] * 11, "other")
    pressed.must_finish(200)


def test_an_old_text_that_lost_its_kv_is_not_passed_by_for_ever():
    """Short ones that come in all the time decode in every step, and take every block that becomes free."""
    pressed = Pressed(1000.0, [[7] * 30], {"num_blocks": 10, "block_size": 4}, max_step_tokens=64)
    (old,) = pressed.sessions
    pressed.draft(old, 1)
    for newcomer in range(20):
        pressed.step()
        pressed.open([1 + newcomer] * 2, max_tokens=8)
    assert not holds(old), "it gave way while its device drafted"
    known = len(old.sequence)
    pressed.draft(old, 2)
    for newcomer in range(20, 30):
        pressed.step()
        pressed.open([1 + newcomer] * 2, max_tokens=8)
    assert len(old.sequence) > known


def test_who_has_work_to_do_loses_his_kv_to_older_ones_or_where_nobody_gets_on_otherwise():
    """A policy may pass somebody over for a step: that is no rest."""
    pressed = Pressed(0.0, [[1] * 20, [2] * 20], {"num_blocks": 8, "block_size": 4})
    old, young = pressed.sessions
    pressed.step(Slice(0, 20, True))
    assert pressed.step(Slice(1, 16, False), Slice(0, 1, True)) == {0}
    assert holds(old) and not holds(young)
    assert pressed.loop.machine.left_out == {1}, "who gets no KV is named"
    assert pressed.step(Slice(1, 20, True)) == {1}, "nobody else is planned"
    pressed.must_finish(100)


def test_who_is_planned_does_not_rest_though_his_device_may():
    """The server decodes for a device that is late."""
    pressed = Pressed(100.0, [[1] * 19, [2] * 20], {"num_blocks": 8, "block_size": 4})
    old, young = pressed.sessions
    pressed.draft(old, 1)
    pressed.step(Slice(0, 19, True))
    assert old.rests
    assert pressed.step(Slice(1, 16, False), Slice(0, 1, True)) == {0}
    assert not holds(young)


def test_who_was_refused_and_then_lost_his_kv_waits_for_the_next_plan():
    pressed = Pressed(0.0, [[1] * 16, [2] * 20, [3] * 20], {"num_blocks": 8, "block_size": 4})
    pressed.step(Slice(0, 15, False))
    pressed.step(Slice(2, 8, False))
    assert pressed.step(Slice(2, 12, True), Slice(1, 20, True)) == {1}
    assert pressed.loop.machine.left_out == frozenset()
    pressed.must_finish(100)


def test_what_is_computed_ahead_takes_free_blocks_only():
    pressed = Pressed(100.0, [[1] * 20, [2] * 20], {"num_blocks": 8, "block_size": 4})
    pressed.draft(pressed.sessions[0], 1)
    pressed.step(Slice(0, 20, True))
    assert pressed.step(Slice(1, 16, False, ahead=True)) == set()
    assert pressed.step(Slice(1, 8, False, ahead=True)) == {1}
    assert holds(pressed.sessions[0])
