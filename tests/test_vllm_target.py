"""Engine vllm under the machine: which sequences vLLM has where memory is short, steps fail, and texts change.

What holds for every target is in test_target_contract.py.
"""

from __future__ import annotations

from tests.fakes import continuation
from tests.test_target_contract import PROMPTS, Room, drafts_on, over_vllm, submit
from verify_server.round.session import Session

LONG, SHORT = list(range(1, 14)), [4, 5, 6]


def step(room: Room, count: int = 1) -> None:
    for _ in range(count):
        room.end(room.begin())


def resting(room: Room, prompt: list[int]) -> Session:
    """A sequence whose device is at work on a draft."""
    session = room.enter(prompt, 12)
    step(room)
    drafts_on(room, session)
    return session


def test_a_sequence_that_rests_gives_its_memory_to_one_that_would_not_get_on():
    room = Room(over_vllm(7), draft_wait=100.0)
    first = resting(room, LONG)
    second = room.enter(LONG, 12)
    step(room)
    assert room.written(second) == continuation(LONG, 1), "in the very step that was stuck"
    assert not room.target._core.text(str(first.id))
    submit(room, first, 2, counter=2)
    room.finish()
    assert [room.written(each) for each in (first, second)] == [continuation(LONG, 12)] * 2
    assert room.machine.stats.preempted > 0


def test_a_sequence_that_lost_its_memory_as_it_rested_is_in_nobodys_way():
    room = Room(over_vllm(8), draft_wait=100.0)
    eldest = room.enter(LONG, 15)
    step(room)
    resting(room, LONG[:9])
    while room.target._core.preempted == 0:
        step(room)
    newest = room.enter(SHORT, 4)
    step(room, 2)
    assert room.written(newest) and len(room.written(eldest)) < 15


def test_a_sequence_that_rests_for_long_gives_its_memory_to_one_that_waits():
    for seconds in (0.0, 3.0):
        room = Room(over_vllm(7), draft_wait=100.0)
        resting(room, LONG[:9])
        working = room.enter(SHORT, 16)
        step(room)
        room.now += seconds
        waiting = room.enter(LONG, 4)
        step(room, 3)
        assert bool(room.written(waiting)) == (seconds > 0) and len(room.written(working)) < 16


def test_a_sequence_that_fails_as_it_rests_ends_with_its_next_step():
    room = Room(over_vllm(40), draft_wait=100.0)
    session = resting(room, LONG)
    room.enter(SHORT, 12)
    room.target._core.poisoned = str(session.id)
    step(room)
    assert not session.failed
    submit(room, session, 2, counter=2)
    step(room)
    assert room.errors == {session.id: "engine"}


def test_a_failed_step_is_recovered_and_costs_no_sequence():
    target = over_vllm(400)
    room = Room(target)
    sessions = [room.enter(prompt, 20) for prompt in PROMPTS]
    for _ in range(6):
        room.end(room.begin())
        target._core.fails = 1
    room.finish()
    assert [room.written(each) for each in sessions] == [continuation(prompt, 20) for prompt in PROMPTS]


def test_a_text_that_another_server_changed_is_computed_anew():
    target = over_vllm(400)
    room = Room(target)
    session = room.enter(PROMPTS[2], 20)
    session.run_ahead(8)
    for _ in range(4):
        room.end(room.begin())
    sequence, length = session.sequence, len(PROMPTS[2])
    assert len(sequence) == length + 4
    other = 1 + sequence.tokens[length + 1] % 8
    changed = [*sequence.tokens[: length + 1], other]
    sequence.follow(changed[length:], 2)
    sequence.decide_alone()
    session.retell(length, room.now)
    room.finish()
    assert sequence.tokens == [*changed, *continuation(changed, 18)]
