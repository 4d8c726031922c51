"""The shape of draft trees: pure functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opensled.core.messages import DraftBlock
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
from tests.hypothesis_profiles import tried
from tests.tree_drafts import paths, shapes


@tried(200)
@given(shapes())
def test_twins_become_one_and_no_path_is_lost(block: DraftBlock) -> None:
    merged = without_twins(block)
    assert set(paths(merged)) == set(paths(block))
    assert len(set(paths(merged))) == len(merged.tokens)
    assert all(parent < index for index, parent in enumerate(merged.parents))


@tried(200)
@given(shapes())
def test_depth_first_keeps_the_tree_and_every_branch_is_a_run(block: DraftBlock) -> None:
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
def test_what_is_too_deep_is_left_out(block: DraftBlock, longest: int) -> None:
    kept = no_deeper(block, longest)
    assert paths(kept) == [path for path in paths(block) if len(path) <= longest]
    assert depth(kept.tokens, kept.parents) == min(longest, max(map(len, paths(block))))


@tried(200)
@given(shapes(), st.integers(1, 5))
def test_of_a_tree_that_is_too_wide_the_first_tokens_are_left(block: DraftBlock, branches: int) -> None:
    kept = no_wider(block, branches)
    assert kept == block.first(len(kept.tokens))
    assert len(set(range(len(kept.tokens))) - set(kept.parents)) <= branches
    if len(kept.tokens) < len(block.tokens):
        more = block.first(len(kept.tokens) + 1)
        assert len(set(range(len(more.tokens))) - set(more.parents)) > branches


@tried(100)
@given(shapes())
def test_paths_and_runs_follow_parents(block: DraftBlock) -> None:
    for index, path in enumerate(paths(block)):
        indices = path_to(block.parents, index)
        assert tuple(block.tokens[i].id for i in indices) == path and depths(block.parents)[index] == len(
            path
        )
        run = run_after(block.parents, index)
        assert all(block.parents[i] == i - 1 for i in run) and run.start == index + 1
        assert run.stop == len(block.tokens) or block.parents[run.stop] != run.stop - 1
