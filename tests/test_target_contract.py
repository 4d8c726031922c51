"""What must hold of a target under the machine, whatever its memory: every user reads what the target alone writes,
whoever drafted; nobody is forgotten; no memory leaks."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from hw_profiles.step_cost import HardwareProfile, Roofline
from opensled.core.messages import Draft, DraftBlock, DraftToken, Failure, Prefill, Verdict
from opensled.core.protocol import Truth
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from scheduler.plan import SchedulingPolicy
from scheduler.static import Static
from tests.fakes import FakeEngine, continuation
from tests.policy_world import Habits, World
from tests.sessions import made
from verify_server.round.block_target import BlockTarget
from verify_server.round.machine import StepMachine, Work
from verify_server.round.session import Session
from verify_server.round.target import Target

PROFILE = HardwareProfile(16, Roofline(read_s=0.01, token_s=0.001, context_s=0, session_s=0, overhead_s=0))
TARGETS: dict[str, Callable[[], Target]] = {
    "blocks": lambda: BlockTarget(FakeEngine(400)),
    "few blocks": lambda: BlockTarget(FakeEngine(22)),
}
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


def test_short_memory_preempts_and_changes_no_text():
    world = World(POLICIES["fcfs"], PROFILE, seed=2, target=TARGETS["few blocks"]())
    for number in range(6):
        world.join(replace(DEVICES["some right"], link_s=0.02), 40, prompt=12, at=0.01 * number)
    world.run()
    assert all(user.truth.tokens == user.script for user in world.users)
    assert world.loop.machine.stats.preempted > 0 and is_free(world.loop.machine.target)


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
            elif begun.until == inf:
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


def test_a_beginning_is_found_again_by_its_tenant_alone():
    room, prompt = Room(TARGETS["blocks"]()), list(range(1, 14))
    cached = []
    for tenant in ("a", "a", "b"):
        session = room.enter(prompt, 6, tenant)
        room.finish()
        assert room.written(session) == continuation(prompt, 6)
        cached.append(max((prefill.cached for prefill in room.prefills[session.id]), default=0))
    assert cached == [0, 12, 0]


def test_memory_is_counted_by_tenant():
    room = Room(TARGETS["blocks"]())
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


def test_a_failed_step_ends_its_sequences_by_name_and_no_other():
    target = BlockTarget(Breaking(400))
    room = Room(target, draft_wait=10.0)
    failing, waiting = room.enter(PROMPTS[1], 20), room.enter(PROMPTS[2], 20)
    room.end(room.begin())
    drafts_on(room, waiting)
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
