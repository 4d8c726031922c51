"""KV that moves to host memory and back: who moves, when, what it costs, and that no text and no block is lost."""

from __future__ import annotations

import pytest

from hw_profiles.step_cost import HardwareProfile, Roofline
from hw_profiles.swap_cost import SwapCost, recompute_s
from scheduler.plan import Slice
from tests.test_kv_pressure import Pressed
from tests.tiered import BLOCK_BYTES, HeldCopies, TieredEngine, host_memory
from verify_server.kv.host_tier import HostTier
from verify_server.kv.swap import Stage
from verify_server.loop import VerifyLoop


class Tiered(Pressed):
    """Sequences of a device each, in less memory than they need, with host memory."""

    def __init__(self, prompts, pool, host: int = 64, bytes_s: float = 1e12, **sharing) -> None:
        super().__init__(100.0, [], pool, max_step_tokens=64)
        self.engine = TieredEngine(**pool)
        self.out, self.back = HeldCopies(), HeldCopies()
        self.loop = VerifyLoop(
            self.engine,
            self.loop.policy,
            HardwareProfile(64),
            lambda: self.now,
            host=host_memory(host, bytes_s),
            copiers=(self.out, self.back),
            **sharing,
        )
        for prompt in prompts:
            self.open(prompt)

    @property
    def tier(self) -> HostTier:
        assert self.loop.tier is not None
        return self.loop.tier

    def rest(self, number: int) -> None:
        """Compute a prompt; from then on its device drafts."""
        session = self.sessions[number]
        self.draft(session, 1)
        self.step(Slice(session.id, session.sequence.uncomputed, True))
        self.now += 1.0

    def end(self, number: int) -> None:
        """It is cancelled; the others keep their numbers."""
        self.loop.remove(self.sessions[number])

    def stage(self, number: int) -> Stage | None:
        swap = self.sessions[number].sequence.table.swap
        return swap and swap.stage

    def stages(self) -> list[Stage | None]:
        return [self.stage(number) for number in range(len(self.sessions))]

    def end_copies(self) -> None:
        while self.out.waiting or self.back.waiting:
            for copies in (self.out, self.back):
                while copies.waiting:
                    copies.end()

    def must_finish(self, steps: int) -> None:
        self.sessions = [session for session in self.sessions if not session.closed]
        for session in self.sessions:
            self.loop.listen(session)  # no draft comes any more: the server goes on by itself
        for _ in range(steps):
            self.loop._tend()
            self.step()
            self.end_copies()
        super().must_finish(1)
        assert self.tier.travelling == 0
        assert self.loop.pool.num_free == self.loop.pool.num_blocks
        assert self.tier.pool.num_free == self.tier.pool.num_blocks


POOL = {"num_blocks": 8, "block_size": 4}
PROMPTS = [[1] * 11, [2] * 11, [3] * 11]  # of three blocks each


def pressed(**options) -> Tiered:
    """Two sequences whose devices draft, and a third one for which there is no room."""
    tiered = Tiered(PROMPTS, POOL, **options)
    tiered.rest(0)
    tiered.rest(1)
    return tiered


def test_who_waits_moves_out_and_whoever_needs_the_blocks_waits_for_the_copy():
    tiered = pressed()
    assert tiered.step(Slice(2, 11, True)) == set()
    assert tiered.stages().count(Stage.LEAVING) == 1 and tiered.loop.left_out == {2}
    assert tiered.loop.stats.preempted == 0
    tiered.end_copies()
    assert tiered.stages().count(Stage.AWAY) == 1
    assert tiered.step(Slice(2, 11, True)) == {2}
    assert tiered.tier.stats.copies == {"out": 1, "in": 0}
    tiered.must_finish(60)


def test_who_is_expected_back_last_leaves_first():
    tiered = pressed()
    tiered.step(Slice(2, 11, True))
    # Both devices are as fast: the one that was told later comes back later
    assert tiered.stages() == [None, Stage.LEAVING, None]
    tiered = pressed()
    tiered.sessions[0].detach()
    tiered.step(Slice(2, 11, True))
    assert tiered.stages() == [Stage.LEAVING, None, None]


def away(**options) -> tuple[Tiered, int]:
    """Number 1 has left, for number 2."""
    tiered = pressed(**options)
    tiered.step(Slice(2, 11, True))
    tiered.end_copies()
    tiered.step(Slice(2, 11, True))
    assert tiered.stages() == [None, Stage.AWAY, None]
    return tiered, 1


def test_it_comes_back_when_its_draft_arrives_and_nothing_is_computed_again():
    tiered, number = away(prefix_cache=False)
    tiered.end(2)  # there is room again
    computed = tiered.engine.computed
    tiered.draft(tiered.sessions[number], 2)
    assert tiered.stage(number) is Stage.COMING, "ahead of any plan"
    assert tiered.step() == set(), "it is in no step while it is copied"
    tiered.end_copies()
    assert tiered.step() == {number}
    assert tiered.engine.computed - computed == 2, "its newest token and its draft"
    assert tiered.tier.stats.restored == 12
    tiered.must_finish(60)


def test_what_can_still_be_found_is_not_copied_back():
    tiered, number = away()
    tiered.end(2)
    tiered.draft(tiered.sessions[number], 2)
    tiered.end_copies()
    assert tiered.stage(number) is None and tiered.tier.stats.restored == 4, "its last block alone"
    tiered.must_finish(60)


def test_without_room_others_leave_for_it():
    tiered, number = away()
    tiered.draft(tiered.sessions[2], 1)
    tiered.step(Slice(2, 1, True))
    tiered.draft(tiered.sessions[number], 2)
    for _ in range(4):
        if tiered.step() == {number}:
            break
        tiered.end_copies()
    else:
        raise AssertionError("it never came back")
    assert tiered.loop.stats.preempted == 0
    tiered.must_finish(60)


def test_work_that_comes_while_it_leaves_calls_it_off():
    tiered = pressed()
    tiered.step(Slice(2, 11, True))
    tiered.draft(tiered.sessions[1], 2)
    assert tiered.step(Slice(1, 1, True)) == set(), "what is copied is not written"
    held = list(tiered.sessions[1].sequence.table.blocks)
    tiered.end_copies()
    assert tiered.stage(1) is None and tiered.sessions[1].sequence.table.blocks == held
    tiered.must_finish(60)


@pytest.mark.parametrize("when", ["leaving", "coming", "away"])
def test_who_is_cancelled_gives_its_blocks_back_when_the_copy_has_ended(when):
    tiered = pressed() if when == "leaving" else away()[0]
    if when == "leaving":
        tiered.step(Slice(2, 11, True))
    elif when == "coming":
        tiered.loop.remove(tiered.sessions[2])
        tiered.draft(tiered.sessions[1], 2)
    free, on_host = tiered.loop.pool.num_free, tiered.tier.pool.num_free
    tiered.loop.remove(tiered.sessions[1])
    if when != "away":
        assert (tiered.loop.pool.num_free, tiered.tier.pool.num_free) == (free, on_host), (
            "a copy still travels"
        )
    tiered.end_copies()
    for session in tiered.sessions:
        tiered.loop.remove(session)
    assert tiered.loop.pool.num_free == 8 and tiered.tier.pool.num_free == 64


def test_a_copy_out_that_fails_loses_nothing():
    tiered = pressed()
    tiered.step(Slice(2, 11, True))
    tiered.out.end(RuntimeError("no such memory"))
    assert tiered.stages() == [None] * 3 and tiered.tier.stats.failed == 1
    # For a while whoever must go is preempted, as without host memory
    assert tiered.step(Slice(2, 11, True)) == {2} and tiered.loop.stats.preempted == 1
    tiered.must_finish(60)


def test_after_a_copy_back_that_fails_the_text_is_computed_again():
    tiered, number = away()
    tiered.end(2)
    tiered.draft(tiered.sessions[number], 2)
    tiered.back.end(RuntimeError("no such memory"))
    session = tiered.sessions[number]
    assert tiered.stage(number) is None and session.sequence.computed == 0
    assert tiered.tier.stats.failed == 1 and tiered.tier.stats.restored == 0
    tiered.must_finish(60)


def test_what_is_dear_to_copy_is_computed_again():
    tiered = pressed(bytes_s=1.0)
    assert tiered.step(Slice(2, 11, True)) == {2}
    assert tiered.stages() == [None] * 3 and tiered.loop.stats.preempted == 1
    tiered.must_finish(60)


def test_full_host_memory_leaves_preemption():
    tiered = pressed(host=2)
    assert tiered.step(Slice(2, 11, True)) == {2}
    assert tiered.loop.stats.preempted == 1 and tiered.tier.pool.num_free == 2
    tiered.must_finish(60)


def test_a_common_beginning_is_copied_once_and_stays_while_others_use_it():
    tiered = Tiered([[1] * 11 + [7], [1] * 11 + [8], [3] * 11], {"num_blocks": 6, "block_size": 4})
    tiered.rest(0)
    tiered.loop._snapshot()  # the second one takes over two blocks
    tiered.rest(1)
    tiered.step(Slice(2, 11, True))
    tiered.end_copies()
    assert tiered.stages() == [None, Stage.AWAY, None]
    first = tiered.sessions[0].sequence.table.blocks[0]
    assert tiered.loop.pool.holders(first) == 1, "the other one still uses it"
    assert tiered.tier.stats.bytes["out"] == 3 * BLOCK_BYTES
    tiered.sessions[0].detach()
    assert tiered.tier.park(tiered.sessions[0])
    tiered.end_copies()
    assert tiered.tier.stats.bytes["out"] == 4 * BLOCK_BYTES, "its beginning was there already"
    tiered.sessions[0].attach(12)
    tiered.must_finish(60)


def test_readers_who_are_gone_make_room_in_host_memory():
    tiered = Tiered([[1] * 11, [2] * 11], {"num_blocks": 40, "block_size": 4}, host=4)
    tiered.rest(0)
    tiered.rest(1)
    tiered.sessions[0].detach()
    tiered.now = 20.0  # nobody is expected
    for number in (0, 1):
        assert tiered.tier.park(tiered.sessions[number])
        tiered.end_copies()
    assert tiered.stages() == [None, Stage.AWAY]
    assert tiered.sessions[0].sequence.computed == 0 and tiered.tier.displaced == 1


def test_a_tenants_budget_holds_in_host_memory_too():
    tiered = Tiered([], {"num_blocks": 40, "block_size": 4})
    for kind in (1, 2):
        tiered.open([kind] * 11, "t", budget=28)  # 7 blocks
        tiered.rest(kind - 1)
    tiered.now = 20.0  # nobody is expected
    for number in (0, 1):
        assert tiered.tier.park(tiered.sessions[number])
        tiered.end_copies()
    tiered.open([3] * 11, "t", budget=28)
    tiered.rest(2)
    assert tiered.tier.pool.held("t") == 6
    assert not tiered.tier.park(tiered.sessions[2])
    tiered.must_finish(60)


def test_free_memory_is_kept_for_those_who_come_back():
    tiered = Tiered([[1 + number] * 11 for number in range(9)], {"num_blocks": 32, "block_size": 4})
    for number in range(9):
        tiered.rest(number)
    tiered.now += 0.001
    tiered.loop._tend()
    tiered.end_copies()
    assert tiered.loop.pool.num_free >= 2 and tiered.loop.stats.preempted == 0


def test_an_older_one_with_work_gets_the_blocks_of_a_newer_one():
    tiered = Tiered([[1] * 11, [2] * 11], {"num_blocks": 5, "block_size": 4})
    tiered.step(Slice(1, 11, True))
    assert tiered.step(Slice(0, 11, True)) == set()
    tiered.end_copies()
    assert tiered.stages() == [None, Stage.AWAY]
    assert tiered.step(Slice(0, 11, True), Slice(1, 1, True)) == {0}
    tiered.must_finish(200)


def test_recomputing_costs_full_steps_and_copies_what_they_showed():
    profile = HardwareProfile(
        100, Roofline(read_s=0, token_s=1e-3, context_s=0, session_s=0, overhead_s=0.01)
    )
    assert recompute_s(profile, 0, 250) == pytest.approx(0.25 + 3 * 0.01)
    assert recompute_s(profile, 40, 40) == 0
    cost = SwapCost(1000, 1e6)
    assert cost.seconds(10) == pytest.approx(0.01)
    for _ in range(20):
        cost.observe(10, 0.1)
    assert cost.seconds(10) == pytest.approx(0.1, rel=0.05)


def test_drafts_that_lack_a_block_each_do_not_take_it_from_each_other_for_ever():
    """Everybody is there, has a draft, and needs one block more: the first one gets it from the last one."""
    tiered = Tiered(
        [[1 + number] * 12 for number in range(3)], {"num_blocks": 9, "block_size": 4}, prefix_cache=False
    )
    for number in range(3):
        tiered.rest(number)
    before = [len(session.sequence) for session in tiered.sessions]
    for number in (2, 0, 1):  # the newest sequence has the oldest draft
        tiered.draft(tiered.sessions[number], 2)
        tiered.now += 0.1
    for _ in range(30):
        tiered.loop._tend()
        tiered.step()
        tiered.end_copies()
    after = [len(session.sequence) for session in tiered.sessions]
    assert all(now > was for now, was in zip(after, before))
    tiered.must_finish(200)


def test_who_loses_his_place_in_host_memory_in_the_midst_of_a_plan_waits_for_the_next_one():
    """A tenant above his share has all of host memory; he is planned, too, in the step that takes it from him."""
    tiered = Tiered([], {"num_blocks": 9, "block_size": 4}, host=9, prefix_cache=False)
    for kind, tenant in ((1, "greedy"), (2, "greedy"), (3, "greedy"), (4, "other")):
        tiered.open([kind] * 11, tenant)
    for number in range(3):
        tiered.rest(number)
    tiered.now = 20.0  # nobody is expected
    for number in range(2):
        assert tiered.tier.park(tiered.sessions[number])
        tiered.end_copies()
    tiered.rest(3)
    tiered.now = 40.0
    tiered.open([5] * 20, "new")
    tiered.draft(tiered.sessions[0], 2)
    planned = [Slice(4, 20, True), Slice(0, 1, True)]
    for _ in range(6):
        tiered.step(*planned)
        tiered.end_copies()
    tiered.must_finish(300)
