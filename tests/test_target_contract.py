"""What a target may do under the machine, and what must hold all the same: every user reads what the target alone
writes, whoever drafted; nobody is forgotten; no memory leaks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest

from hw_profiles.step_cost import HardwareProfile, Roofline
from opensled.core.messages import Draft, DraftBlock, DraftToken, Failure, Prefill, Verdict
from opensled.core.protocol import Truth
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from scheduler.plan import SchedulingPolicy
from scheduler.static import Static
from tests.fake_vllm import FakeCore
from tests.fakes import FakeEngine, continuation
from tests.foreign_target import ForeignTarget
from tests.policy_world import Habits, World
from tests.sessions import made
from verify_server.engine.vllm.target import VllmTarget
from verify_server.round.block_target import BlockTarget
from verify_server.round.budget import DraftBudget, Quota
from verify_server.round.machine import StepMachine, Work
from verify_server.round.session import Session
from verify_server.round.target import Target

PROFILE = HardwareProfile(16, Roofline(read_s=0.01, token_s=0.001, context_s=0, session_s=0, overhead_s=0))
# With memory in plenty; short of it; and one that schedules very much by itself.
TARGETS: dict[str, Callable[[], Target]] = {
    "blocks": lambda: BlockTarget(FakeEngine(400)),
    "few blocks": lambda: BlockTarget(FakeEngine(22)),
    "foreign": lambda: ForeignTarget(400),
    "few pages": lambda: ForeignTarget(22),
    "wilful": lambda: ForeignTarget(40, at_once=2, chunk=7, leaves=0.4),
    "vllm": lambda: over_vllm(400),
    "vllm, few blocks": lambda: over_vllm(22),
    "vllm, few seats": lambda: over_vllm(40, seats=2, chunk=7),
}


def over_vllm(blocks: int, **more: int) -> VllmTarget:
    facts = replace(ForeignTarget.facts, num_blocks=blocks, block_size=FakeCore.block_size, runtime="vllm")
    return VllmTarget(FakeCore(blocks, **more), facts)


DEVICES = {
    "right": Habits(right=1.0),
    "some right": Habits(right=0.6),
    "wrong": Habits(right=0.0),
    "late": Habits(right=0.8, draft_s=0.05, link_s=0.1),
    "none": Habits(length=0),
    "leaves and comes back": Habits(right=0.8, leaves_after=5),
}
POLICIES: dict[str, SchedulingPolicy] = {
    "fcfs": Fcfs(0.1), "goodput": Goodput(0.1), "static": Static(0.1, 2)
}  # fmt: skip


@pytest.fixture(params=TARGETS)
def target(request) -> Target:
    return TARGETS[request.param]()


def is_free(target: Target) -> bool:
    if isinstance(target, ForeignTarget):
        target.collect()
    else:
        target.settle()
    return target.memory.free == target.memory.tokens


# -- texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_text_is_the_targets_own(target, policy, device):
    world = World(POLICIES[policy], PROFILE, seed=1, target=target)
    for number in range(5):
        world.join(DEVICES[device], 24, prompt=9 + 5 * number, at=0.02 * number)
    world.run()
    for user in world.users:
        assert user.truth.tokens == user.script and user.truth.finish_reason == "length"
    assert is_free(target) and not world.loop.machine.sessions


@pytest.mark.parametrize("kind", ["few blocks", "few pages", "vllm, few blocks"])
def test_short_memory_preempts_and_changes_no_text(kind):
    world = World(POLICIES["fcfs"], PROFILE, seed=2, target=TARGETS[kind]())
    for number in range(6):
        world.join(replace(DEVICES["some right"], link_s=0.02), 40, prompt=12, at=0.01 * number)
    world.run()
    assert all(user.truth.tokens == user.script for user in world.users)
    assert world.loop.machine.stats.preempted > 0 and is_free(world.loop.machine.target)


@pytest.mark.parametrize("kind", ["foreign", "wilful", "vllm"])
def test_drafts_save_steps_though_sequences_are_left_out(kind):
    steps = {}
    for device in ("right", "none"):
        world = World(POLICIES["fcfs"], PROFILE, target=TARGETS[kind]())
        for _ in range(3):
            world.join(DEVICES[device], 40)
        world.run()
        steps[device] = world.steps
    assert steps["right"] < 0.6 * steps["none"]


# -- by hand ----------------------------------------------------------------------------------------------------


class Room:
    """Sessions of one target, moved by hand; a step takes no time."""

    def __init__(self, target: Target, draft_wait: float = 0.0) -> None:
        self.target = target
        self.machine = StepMachine(target, Fcfs(draft_wait), PROFILE, learns=False)
        self.truths: dict[int, Truth] = {}
        self.errors: dict[int, str] = {}
        self.prefills: dict[int, list[Prefill]] = {}
        self.now = 0.0

    def enter(self, prompt: list[int], tokens: int, tenant: str = "t") -> Session:
        id = len(self.truths) + 1
        session = made(id, prompt, tokens, self.target.memory.place(tenant, 0, {}), tenant=tenant)
        self.machine.add(session, self.now)
        session.attach(len(prompt))
        self.truths[id], self.prefills[id] = Truth(prompt), []
        return session

    def begin(self) -> Work:
        begun = self.machine.begin(self.now)
        assert isinstance(begun, Work)
        return begun

    def end(self, work: Work) -> None:
        """As the loop ends a step."""
        try:
            outcomes = self.target.step(work.items)
        except Exception:
            outcomes = None
        assert not self.machine.end(work, outcomes, self.now, 0.0)
        for item in work.items:
            self.read(item.session)

    def read(self, session: Session) -> None:
        for message in session.outbox.drain():
            if isinstance(message, Verdict):
                self.truths[session.id].extend(message)
            elif isinstance(message, Prefill):
                self.prefills[session.id].append(message)
            elif isinstance(message, Failure):
                self.errors[session.id] = message.code

    def finish(self, most: int = 1000) -> None:
        """Until nothing is left to do, however long devices are waited for."""
        for _ in range(most):
            begun = self.machine.begin(self.now)
            if isinstance(begun, Work):
                self.end(begun)
            elif begun.until is None:
                return
            else:
                self.now = begun.until
        raise AssertionError("it never ends")

    def written(self, session: Session) -> list[int]:
        return list(self.truths[session.id].generated)


PROMPTS = [[number, *range(3, 3 + 3 * number)] for number in range(1, 6)]


def test_a_sequence_that_ends_in_mid_step_gives_its_memory_back(target):
    room = Room(target)
    sessions = [room.enter(prompt, 20) for prompt in PROMPTS]
    room.end(room.begin())
    work = room.begin()
    gone = work.items[-1].session
    room.machine.remove(gone)
    assert gone.closed and gone.in_step
    room.end(work)
    room.finish()
    assert not gone.in_step
    for session, prompt in zip(sessions, PROMPTS):
        assert session is gone or room.written(session) == continuation(prompt, 20)
    assert is_free(target) and not room.machine.sessions


def test_a_sequence_goes_on_from_its_prompt_and_what_is_committed(target):
    room, prompt = Room(target), PROMPTS[2]
    whole = continuation(prompt, 24)
    for cut in (1, 4, 8, 23):
        resumed = room.enter([*prompt, *whole[:cut]], 24 - cut)
        room.finish()
        assert room.written(resumed) == whole[cut:]
    assert is_free(target)


@pytest.mark.parametrize("kind", ["blocks", "foreign"])
def test_a_beginning_is_found_again_by_its_tenant_alone(kind):
    room, prompt = Room(TARGETS[kind]()), list(range(1, 14))
    cached = []
    for tenant in ("a", "a", "b"):
        session = room.enter(prompt, 6, tenant)
        room.finish()
        assert room.written(session) == continuation(prompt, 6)
        cached.append(max((prefill.cached for prefill in room.prefills[session.id]), default=0))
    assert cached == [0, 12, 0]


@pytest.mark.parametrize("kind", ["blocks", "foreign", "vllm"])
def test_memory_is_counted_by_tenant(kind):
    room = Room(TARGETS[kind]())
    for tenant, length in (("a", 9), ("b", 5)):
        room.enter(list(range(1, length + 1)), 20, tenant)
    for _ in range(3):
        room.end(room.begin())
    memory, held = room.target.memory, [session.sequence.memory for session in room.machine.sessions.values()]
    assert memory.count_held("a") >= 12 and memory.count_held("b") >= 8 and memory.count_held("c") == 0
    assert memory.count_held("a") + memory.count_held("b") == memory.tokens - memory.free
    assert memory.room_beside(held) == memory.free
    assert sum(memory.states().values()) == memory.tokens


# -- failures ---------------------------------------------------------------------------------------------------


class Breaking(FakeEngine):
    """An engine that fails on demand."""

    broken = False

    def forward(self, segments):
        if self.broken:
            self.broken = False
            raise RuntimeError("the device fell off the bus")
        return super().forward(segments)


@pytest.mark.parametrize("kind", ["blocks", "foreign"])
def test_a_failed_step_ends_its_sequences_by_name_and_no_other(kind):
    target = BlockTarget(Breaking(400)) if kind == "blocks" else ForeignTarget(400)
    room = Room(target, draft_wait=10.0)
    failing, waiting = room.enter(PROMPTS[1], 20), room.enter(PROMPTS[2], 20)
    room.end(room.begin())
    drafts_on(room, waiting)
    if isinstance(target, ForeignTarget):
        target.breaks.append("raise")
    else:
        target.engine.broken = True
    work = room.begin()
    assert [item.session for item in work.items] == [failing]
    room.end(work)
    assert room.errors == {failing.id: "engine"} and failing.failed and not waiting.failed
    room.finish()
    again = room.enter(PROMPTS[1], 20)
    room.finish()
    assert room.written(again) == continuation(PROMPTS[1], 20)
    assert room.written(waiting) == continuation(PROMPTS[2], 20)
    assert is_free(target)


def drafts_on(room: Room, session: Session) -> None:
    """A right draft is verified; its device is at work on the next one from then on."""
    submit(room, session, 2)
    room.end(room.begin())
    assert session.awaits_draft


def submit(room: Room, session: Session, length: int, counter: int = 1) -> None:
    known = room.truths[session.id].tokens
    ids = continuation(known, length)
    block = DraftBlock(len(known), tuple(DraftToken(id, 0.9) for id in ids))
    session.submit(Draft(counter, block, 0.0), room.now)


@pytest.mark.parametrize("how", ["recover", "lose"])
def test_a_target_that_recovers_from_a_failed_step_costs_no_sequence(how):
    target = ForeignTarget(400)
    room = Room(target)
    sessions = [room.enter(prompt, 20) for prompt in PROMPTS]
    for _ in range(8):
        room.end(room.begin())
        target.breaks += ["", how]
    room.finish()
    assert all(
        room.written(session) == continuation(prompt, 20) for session, prompt in zip(sessions, PROMPTS)
    )
    assert room.machine.stats.preempted > 0 and is_free(target)


# -- left out ---------------------------------------------------------------------------------------------------


def test_a_draft_that_was_left_out_waits_and_is_verified_whole():
    target = ForeignTarget(400)
    room = Room(target, draft_wait=10.0)
    session = room.enter(PROMPTS[1], 20)
    session.sources.device.budget = DraftBudget(Quota(100.0, 0.0))
    room.end(room.begin())
    before = len(room.written(session))
    submit(room, session, 4)
    waiting, left = session.sources.device.offer, session.sources.device.budget.quota.tokens_left(0.0)
    target.at_once = 0
    for _ in range(3):
        room.end(room.begin())
        assert (
            session.sources.device.offer == waiting
            and session.sources.device.budget.quota.tokens_left(0.0) == left
        )
        assert room.machine.left_out == {session.id}
    target.at_once = 1
    room.end(room.begin())
    assert (
        len(room.written(session)) == before + 5
        and session.sources.device.budget.quota.tokens_left(0.0) == left - 4
    )
    assert not room.machine.left_out


def test_a_sequence_that_ends_while_it_is_left_out_is_forgotten():
    target = ForeignTarget(400)
    room = Room(target)
    ended, moved = room.enter(PROMPTS[1], 20), room.enter(PROMPTS[2], 20)
    room.end(room.begin())
    target.at_once = 0
    work = room.begin()
    room.machine.remove(ended)
    moved.hand_over()
    assert moved.has_reader and not is_free(target)
    room.end(work)
    assert not moved.has_reader
    room.machine.remove(moved)
    assert is_free(target)


def test_a_newer_draft_takes_the_place_of_one_that_was_left_out():
    target = ForeignTarget(400)
    room = Room(target, draft_wait=10.0)
    session = room.enter(PROMPTS[1], 20)
    room.end(room.begin())
    submit(room, session, 1)
    target.at_once = 0
    work = room.begin()
    submit(room, session, 6, counter=2)
    room.end(work)
    assert session.sources.device.offer is not None and session.sources.device.offer.draft.counter == 2
    target.at_once = 1
    room.end(room.begin())
    assert session.sources.device.turn.unanswered is None and len(room.written(session)) == 1 + 7


def test_a_reader_hears_how_far_a_target_has_read():
    room = Room(ForeignTarget(400, chunk=5))
    session = room.enter(list(range(1, 14)), 4)
    room.finish()
    told = [(prefill.computed, prefill.length) for prefill in room.prefills[session.id]]
    assert told == [(5, 13), (10, 13)] and room.written(session) == continuation(list(range(1, 14)), 4)


def test_a_cost_model_learns_what_was_computed():
    target = ForeignTarget(400, chunk=5)
    machine = StepMachine(target, Fcfs(0.0), PROFILE)
    seen: list[tuple[int, ...]] = []
    machine.costs.observe = lambda tokens, contexts, sessions, seconds: seen.append(
        (tokens, contexts, sessions)
    )
    room = Room(target)
    room.machine = machine
    room.enter(list(range(1, 14)), 3)
    target.breaks += ["", "recover"]
    room.finish()
    # Five tokens of the prompt; nothing, as the step recovered; three chunks of the prompt; two tokens one by one.
    assert seen[0] == (5, 5, 1) and (0, 0, 0) not in seen
    assert [tokens for tokens, _, _ in seen] == [5, 5, 5, 3, 1, 1]
    assert machine.stats.positions == 20


def test_what_a_step_is_told_can_travel_to_another_process():
    room = Room(ForeignTarget(400))
    session = room.enter(PROMPTS[1], 20)
    room.end(room.begin())
    submit(room, session, 4)
    (item,) = room.begin().items
    assert pickle.loads(pickle.dumps((item.segment, item.check))) == (item.segment, item.check)
