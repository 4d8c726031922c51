"""Draft trees in a session, step by step and without a loop."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw_profiles.step_cost import HardwareProfile
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import Draft, DraftBlock, DraftToken, SparseDistribution, Verdict
from opensled.core.trees import (
    depth,
    depth_first,
    depths,
    no_deeper,
    no_wider,
    path_to,
    run_after,
    runs,
    without_twins,
)
from scheduler.estimates import Forecast
from scheduler.goodput.policy import Goodput
from scheduler.plan import SessionView, Slice, Snapshot
from tests.fakes import POISON, continuation, next_token
from tests.guiding import ids, schema_guide, tiny
from tests.hypothesis_profiles import tried
from tests.rounds import looping
from tests.sessions import Bench, changed
from tests.tree_drafts import grown, longest_agreeing, paths, shapes, tree
from tests.views import viewed
from verify_server.kv.blocks import BlockTable, OutOfBlocks
from verify_server.riders.answer_logprobs import AnswerLogprobs
from verify_server.round.budget import Quota
from verify_server.round.preemption import KVPreemptor
from verify_server.round.step import run_step
from verify_server.rules.ratio import Ratio

BOOL = {"properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


def wrong(*tokens: int) -> list[int]:
    """Ids that are none of these."""
    return [id for id in range(1, POISON) if id not in tokens]


# Rounds


class TreeBench(Bench):
    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        changed(self.session, max_tree=16)

    def grow(self, block: DraftBlock) -> None:
        self.counter += 1
        self.session.submit(Draft(self.counter, block), 0.0)

    def check_kv(self) -> None:
        """What is called computed is in its place, and nothing beyond is held."""
        session, size = self.session, self.pool.block_size
        assert len(session.sequence.memory.blocks) == self.pool.blocks_for(session.sequence.computed)
        slots = [
            session.sequence.memory.blocks[i // size] * size + i % size
            for i in range(session.sequence.computed)
        ]
        assert [self.engine.slots[slot] for slot in slots] == session.sequence.tokens[
            : session.sequence.computed
        ]


@pytest.fixture
def bench():
    return TreeBench()


def test_the_right_path_among_garbage_commits_all_of_it_and_a_bonus(bench):
    a, b, c, bonus = bench.right(4)
    bad = wrong(a, b, c)
    nodes = [(bad[0], -1), (bad[1], 0), (a, -1), (bad[2], 2), (b, 2), (bad[3], 4), (c, 4), (bad[4], 0)]
    bench.grow(tree(5, *nodes))
    offer = bench.session.view(0.0).device
    assert (offer.tokens, offer.depth) == (8, 3)
    assert bench.step() == Verdict(5, (a, b, c, bonus), 3, 1)
    assert bench.engine.computed == 5 + 8
    bench.check_kv()
    assert bench.session.sequence.computed == len(bench.session.sequence.tokens) - 1


def test_of_twins_the_longer_path_counts_wherever_it_grows(bench):
    a, b, c, bonus = bench.right(4)
    bench.grow(tree(5, (a, -1), (wrong(b)[0], 0), (a, -1), (b, 2), (b, 2), (c, 4)))
    assert bench.step() == Verdict(5, (a, b, c, bonus), 3, 1)
    assert bench.engine.computed == 5 + 4  # a path is computed once
    bench.check_kv()


@tried(150)
@given(st.integers(0, 10**6), st.floats(0.2, 0.9))
def test_every_round_commits_the_longest_agreeing_path_and_one_token(seed, right):
    bench, chance = TreeBench(max_tokens=40), random.Random(seed)
    bench.session.sequence.memory = BlockTable(bench.pool)
    text = continuation(bench.session.sequence.tokens, 40)
    while not bench.session.sequence.finish_reason:
        done = len(bench.session.sequence.tokens) - 5
        block = grown(chance, done + 5, text[done:], chance.randint(1, 16), 40, right)
        bench.grow(block)
        verdict = bench.step()
        longest = longest_agreeing(block, text[done:])
        assert len(verdict.tokens) == min(longest + 1, 40 - done)
        assert verdict.num_accepted == min(longest, 40 - done)
        bench.check_kv()
    assert bench.session.sequence.tokens[5:] == text


@pytest.mark.parametrize("max_tokens", range(1, 5))
def test_tokens_too_deep_to_commit_are_not_computed(max_tokens):
    bench = TreeBench(max_tokens=max_tokens)
    a, b, c = bench.right(3)
    bench.grow(tree(5, (a, -1), (b, 0), (c, 1), (7, 0), (8, -1)))
    verdict = bench.step()
    assert verdict.tokens == (a, b, c, next_token([*bench.session.sequence.tokens[:5], a, b, c]))[:max_tokens]
    assert verdict.finish_reason == "length"
    assert bench.engine.computed == 5 + [0, 2, 4, 5][max_tokens - 1]


def test_a_tree_that_arrives_late_keeps_what_grows_on_the_truth(bench):
    a, b, c, d, bonus = bench.right(5)
    bench.step()
    bad = wrong(a, b, c)
    bench.grow(tree(5, (bad[0], -1), (a, -1), (bad[1], 1), (b, 1), (c, 3), (9, 0), (d, 4)))
    offer = bench.session.view(0.0).device
    assert (offer.tokens, offer.depth) == (4, 3)
    assert bench.step() == Verdict(5, (a, b, c, d, bonus), 4, 1)
    bench.check_kv()


def test_a_tree_during_a_step_meets_the_new_truth_when_the_step_commits(bench):
    a, b, bonus = bench.right(3)
    planned = bench.session.plan(Slice(1, 5, True), 0.0)
    bench.grow(tree(5, (wrong(a)[0], -1), (a, -1), (wrong(b)[0], 1), (b, 1)))
    bench.session.commit(planned, run_step(bench.engine, [planned])[0], now=1.0)
    assert bench.verdict().tokens == (a,)
    assert bench.step() == Verdict(5, (a, b, bonus), 2, 1)


def test_a_stale_tree_is_answered_without_computation(bench):
    a = bench.step().tokens[0]
    computed = bench.engine.computed
    bench.grow(tree(5, (wrong(a)[0], -1), (wrong(a)[1], -1)))
    assert bench.verdict() == Verdict(5, (a,), 0, 1)
    assert bench.engine.computed == computed


def test_an_end_on_the_path_gets_no_bonus():
    script = continuation([3, 1, 4, 1, 5], 6)
    bench = TreeBench(stop_ids=(script[1],))
    bench.grow(tree(5, (wrong(script[0])[0], -1), (script[0], -1), (script[1], 1), (script[2], 2)))
    verdict = bench.step()
    assert (verdict.tokens, verdict.finish_reason) == (tuple(script[:2]), "stop")


def test_logprobs_are_those_of_the_path(bench):
    bench.session.riders = (AnswerLogprobs(0),)
    a, b, bonus = bench.right(3)
    bench.grow(tree(5, (wrong(a)[0], -1), (a, -1), (wrong(b)[0], 1), (b, 1)))
    verdict = bench.step()
    # The fake target's log-probability is -0.5 less the number of the row: after the text, after a, after b.
    assert verdict.logprobs == (((a, -0.5),), ((b, -2.5),), ((bonus, -4.5),))


# Guided answers


@tried(15)
@given(st.integers(0, 10**6))
def test_the_masks_of_a_tree_are_those_of_its_paths(seed):
    guide, chance = schema_guide(BOOL), random.Random(seed)
    answer = ids(chance.choice(('{"a": true}', '{"a":false}')))
    block = depth_first(without_twins(grown(chance, 0, answer, 20, 2000, 0.8)))
    constraint = tiny().start(guide, ())
    masks = constraint.next_masks(block.ids, block.parents)
    own = paths(block) if block.parents else [block.ids[: i + 1] for i in range(len(block.ids))]
    assert masks == [constraint.next_masks(path)[-1] for path in [(), *own]]
    assert constraint.next_masks(answer) == tiny().start(guide, ()).next_masks(answer)  # it left no trace


# Cutting


def test_a_slice_takes_the_first_tokens_of_a_tree(bench):
    a, b = bench.right(2)
    bench.grow(tree(5, (a, -1), (wrong(a)[0], -1), (b, 0)))
    planned = bench.session.plan(Slice(1, 5, True, draft=2), 0.0)
    assert planned.check and planned.check.ids == (a, wrong(a)[0])
    bench.session.commit(planned, run_step(bench.engine, [planned])[0], now=1.0)
    assert bench.verdict() == Verdict(5, (a, b), 2, 1)  # b stands, although only the target itself said so


def test_a_tree_of_one_branch_is_computed_as_a_chain(bench):
    a, b, bonus = bench.right(3)
    bench.grow(tree(5, (a, -1), (b, 0)))
    planned = bench.session.plan(Slice(1, 5, True), 0.0)
    assert planned.segment.parents == ()
    bench.session.commit(planned, run_step(bench.engine, [planned])[0], now=1.0)
    assert bench.verdict() == Verdict(5, (a, b, bonus), 2, 1)


def test_a_quota_counts_all_branches(bench):
    bench.session.sources.device.budget.quota = quota = Quota(2.0, 0.0)  # 4 tokens at first
    a, b = bench.right(2)
    bench.grow(tree(5, (a, -1), (wrong(a)[0], -1), (wrong(a)[1], -1), (b, 0), (7, 0)))
    bench.step()
    assert bench.engine.computed == 5 + 4 and quota.tokens_left(0.0) == 0
    bench.grow(tree(7, (7, -1), (8, -1)))
    bench.step()
    assert bench.engine.computed == 5 + 4 + 1


@pytest.mark.parametrize(("reads", "branches"), [(0, 16), (100, 16), (16, 3), (15, 3), (1, 1)])
def test_where_each_branch_reads_the_text_by_itself_a_tree_is_no_wider_than_it_may(reads, branches, bench):
    changed(bench.session, tree_reads=reads)
    bench.grow(tree(5, *[(id, -1) for id in range(1, 17)]))
    assert bench.session.plan(Slice(1, 5, True), 0.0).segment.rows == 1 + branches


def short_of_memory(free: int) -> TreeBench:
    """It holds one block of 4 tokens and has 5 of text; chains have at most 8 tokens."""
    bench = TreeBench()
    bench.step(tokens=4, decide=False)
    BlockTable(bench.pool).grow(4 * (bench.pool.num_free - free))
    bench.grow(tree(5, *[(id, -1) for id in range(1, 17)]))
    return bench


@pytest.mark.parametrize(("free", "expected"), [(5, 16), (4, 15), (3, 11)])
def test_beyond_the_longest_chain_a_tree_takes_free_memory_only(free, expected):
    assert len(short_of_memory(free).session.plan(Slice(1, 1, True), 0.0).segment.parents) == expected


def test_as_much_memory_as_a_chain_a_tree_asks_for():
    bench = short_of_memory(2)
    with pytest.raises(OutOfBlocks):
        bench.session.plan(Slice(1, 1, True), 0.0)
    assert bench.session.sources.device.offer is not None


def test_a_tree_leaves_others_of_its_step_the_memory_they_need():
    """Five blocks are free, and a tree would take them all; then a session whose device drafts would lose its KV."""
    bench, resting, other = short_of_memory(6), TreeBench(), TreeBench()
    for number, each in enumerate((resting, other), 2):
        each.session.id, each.session.sequence.memory = number, BlockTable(bench.pool)
    resting.step(tokens=4, decide=False)
    resting.session.sources.device.turn.server_drives = False
    step = KVPreemptor({1: bench.session, 2: resting.session, 3: other.session}, bench.pool, 0.0)
    work = step.fit((Slice(1, 1, True), Slice(3, 5, True)), frozenset())
    assert step.preempted == 0 and resting.session.sequence.computed == 4
    assert {planned.session.id: planned.segment.rows for planned in work} == {1: 1 + 11, 3: 1}


def test_what_is_computed_ahead_takes_no_memory_from_a_tree():
    bench, ahead = short_of_memory(5), TreeBench()
    ahead.session.id, ahead.session.sequence.memory = 2, BlockTable(bench.pool)
    step = KVPreemptor({1: bench.session, 2: ahead.session}, bench.pool, 0.0)
    (planned,) = step.fit((Slice(1, 1, True), Slice(2, 4, False, ahead=True)), frozenset())
    assert planned.segment.rows == 1 + 16


def test_a_tree_counts_by_its_depth_in_what_is_known_of_a_device():
    bench, judged, arrived = TreeBench(), [], []
    bench.session.sources.device.estimate.add_verdict = lambda length, accepted, *_: judged.append(
        (length, accepted)
    )  # type: ignore
    bench.session.sources.device.estimate.add_arrival = lambda away, length, s: arrived.append(length)  # type: ignore
    bench.draft(*bench.right(1))
    bench.step()
    bench.grow(tree(7, (3, -1), (4, -1), (5, 0), (6, 1)))
    bench.step()
    assert judged[1][0] == 2 and arrived[-1] == 2
    stale = wrong(bench.session.sequence.tokens[5])
    bench.grow(tree(5, (stale[0], -1), (stale[1], -1), (stale[2], -1)))
    assert judged[-1] == (1, 0)


# Refusals


@pytest.mark.parametrize(
    ("change", "block", "error", "field"),
    [
        ({"max_tree": 0}, tree(5, (1, -1)), Unsupported, "parents"),
        ({"max_tree": 2}, tree(5, (1, -1), (2, -1), (3, -1)), InvalidRequest, "tokens"),
        ({"rule": Ratio(), "max_tree": 0}, tree(5, (1, -1)), Unsupported, "parents"),
        ({}, tree(5, (1, -1), (POISON + 9, 0)), InvalidRequest, "tokens"),
        ({}, tree(4, (1, -1)), InvalidRequest, "base"),
    ],
)
def test_a_bad_tree_is_a_typed_error_and_changes_nothing(change, block, error, field, bench):
    changed(bench.session, **{"max_tree": 16} | change)
    with pytest.raises(error) as caught:
        bench.grow(block)
    assert caught.value.field == field
    assert bench.session.sources.device.offer is None and len(bench.session.sequence.tokens) == 5


def test_rule_ratio_refuses_a_tree_by_name_even_with_its_distributions(bench):
    changed(bench.session, max_tree=0, rule=Ratio(secret=b"s" * 32))  # as the server opens it
    token = DraftToken(1, drawn_from=SparseDistribution((1,), (1.0,)))
    with pytest.raises(Unsupported, match="takes no draft trees"):
        bench.grow(DraftBlock(5, (token,), (-1,)))


def planned_draft(view: SessionView) -> int | None:
    (piece,) = Goodput(0.1).plan(Snapshot((view,)), HardwareProfile(512), 1.0).slices
    return piece.draft


def test_the_limit_of_chains_does_not_cut_a_tree():
    def planned(**fields: int) -> int | None:
        return planned_draft(viewed(1, draft=40, forecast=Forecast(), **fields))

    assert planned(depth=5) == 40
    assert planned(depth=0) == 16
    assert planned(depth=5, longest=0) == 0


def test_a_server_learns_that_each_branch_reads_the_text(monkeypatch):
    bench, observed = TreeBench(), []
    loop = looping(bench.engine, Goodput(0.1), HardwareProfile(512), learns=True)
    monkeypatch.setattr(loop.machine.costs, "observe", lambda *seen: observed.append(seen))
    bench.step()
    a, b = bench.right(2)
    bench.grow(tree(6, (a, -1), (b, 0), (wrong(b)[0], 0), (wrong(a)[0], -1)))
    item = bench.session.plan(Slice(1, 1, True), 0.0)
    loop.machine._learn([item.segment], len(item.segment.tokens), 0.5)
    loop.close()
    assert observed == [(5, 3 * 5 + 5, 1, 0.5)]  # tokens, positions read, sessions, seconds


# -- shapes -------------------------------------------------------------------------------------------------------


@tried(200)
@given(shapes())
def test_twins_become_one_and_no_path_is_lost(block):
    merged = without_twins(block)
    assert set(paths(merged)) == set(paths(block))
    assert len(set(paths(merged))) == len(merged.tokens)
    assert all(parent < index for index, parent in enumerate(merged.parents))


@tried(200)
@given(shapes())
def test_depth_first_keeps_the_tree_and_every_branch_is_a_run(block):
    ordered = depth_first(block)
    if not ordered.parents:
        assert paths(block) == [ordered.ids[: count + 1] for count in range(len(ordered.tokens))]
        return
    assert sorted(paths(ordered)) == sorted(paths(block))
    leaves = set(range(len(ordered.tokens))) - set(ordered.parents)
    assert len(list(runs(ordered.parents))) == len(leaves)
    assert [index for run in runs(ordered.parents) for index in run] == list(range(len(ordered.tokens)))


@tried(100)
@given(shapes(), st.integers(0, 5))
def test_what_is_too_deep_is_left_out(block, longest):
    kept = no_deeper(block, longest)
    assert paths(kept) == [path for path in paths(block) if len(path) <= longest]
    assert depth(kept.tokens, kept.parents) == min(longest, max(map(len, paths(block))))


@tried(200)
@given(shapes(), st.integers(1, 5))
def test_of_a_tree_that_is_too_wide_the_first_tokens_are_left(block, branches):
    kept = no_wider(block, branches)
    assert kept == block.first(len(kept.tokens))
    assert len(set(range(len(kept.tokens))) - set(kept.parents)) <= branches
    if len(kept.tokens) < len(block.tokens):
        more = block.first(len(kept.tokens) + 1)
        assert len(set(range(len(more.tokens))) - set(more.parents)) > branches


@tried(100)
@given(shapes())
def test_paths_and_runs_follow_parents(block):
    for index, path in enumerate(paths(block)):
        indices = path_to(block.parents, index)
        assert tuple(block.tokens[i].id for i in indices) == path and depths(block.parents)[index] == len(
            path
        )
        run = run_after(block.parents, index)
        assert all(block.parents[i] == i - 1 for i in run) and run.start == index + 1
        assert run.stop == len(block.tokens) or block.parents[run.stop] != run.stop - 1
