"""The position rules, one by one and under Hypothesis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensled.core.errors import FutureBase, TruthConflict
from opensled.core.messages import DraftBlock, DraftToken, Verdict
from opensled.core.protocol import EndRules, Truth, common_prefix, cut, follow_path, likeliest_path, rebase


def block(base, *ids):
    return DraftBlock(base, tuple(DraftToken(id) for id in ids))


def test_a_draft_on_the_future_is_the_peers_error():
    with pytest.raises(FutureBase):
        rebase(block(4, 7), [1, 2, 3])


ids = st.integers(0, 3)


@given(truth=st.lists(ids, min_size=1, max_size=8), base=st.integers(0, 8), draft=st.lists(ids, max_size=6))
def test_rebasing_never_changes_what_the_draft_says(truth, base, draft):
    base = min(base, len(truth))
    rest = rebase(block(base, *draft), truth)
    told = [*truth[:base], *draft]
    if rest is None:
        assert told[: len(truth)] != truth
    else:
        assert [*truth, *rest.ids] == told
        assert rest.base == len(truth)


def test_truth_takes_only_what_is_new():
    truth = Truth([1, 2])
    assert truth.extend(Verdict(2, (5, 6))) == (5, 6)
    assert truth.extend(Verdict(2, (5, 6))) == ()
    assert truth.extend(Verdict(3, (6, 7))) == (7,)
    assert truth.extend(Verdict(2, (5,))) == ()
    assert truth.generated == (5, 6, 7)


def test_a_gap_changes_nothing():
    truth = Truth([1, 2])
    assert truth.extend(Verdict(3, (5,), finish_reason="eos")) is None
    assert (truth.generated, truth.finish_reason) == ((), "")


def test_a_disagreement_is_never_spliced():
    truth = Truth([1, 2], [5, 6])
    with pytest.raises(TruthConflict):
        truth.extend(Verdict(2, (5, 9, 7)))
    assert truth.generated == (5, 6)


def test_a_late_copy_of_an_early_verdict_cannot_finish_a_sequence_early():
    truth = Truth([1], [5, 6])
    truth.extend(Verdict(1, (5, 6), finish_reason="length"))
    assert truth.finish_reason == "length"


@given(
    tokens=st.lists(ids, max_size=12),
    pieces=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40),
)
def test_any_order_and_number_of_accounts_gives_a_prefix_of_the_truth(tokens, pieces):
    truth = Truth([9])
    for start, stop in pieces:
        start, stop = min(start, stop, len(tokens)), min(max(start, stop), len(tokens))
        before = len(truth)
        news = truth.extend(Verdict(1 + start, tuple(tokens[start:stop])))
        assert (news is None) == (1 + start > before)
    assert tokens[: len(truth.generated)] == list(truth.generated)


ENDS = EndRules(frozenset({0}), frozenset({8}), last_length=10)


@pytest.mark.parametrize(
    ("tokens", "base", "kept", "reason"),
    [
        ((1, 2, 3), 4, (1, 2, 3), ""),
        ((1, 0, 3), 4, (1, 0), "eos"),
        ((1, 8, 0), 4, (1, 8), "stop"),
        ((1, 2, 3), 8, (1, 2), "length"),
        ((1, 0), 8, (1, 0), "eos"),
        ((1,), 9, (1,), "length"),
    ],
)
def test_a_commit_ends_where_the_sequence_ends(tokens, base, kept, reason):
    assert cut(tokens, base, ENDS) == (kept, reason)


def test_common_prefix():
    pairs = [((), (1,)), ((1, 2), (1, 2)), ((1, 2), (1, 3)), ((2,), (1,))]
    assert [common_prefix(left, right) for left, right in pairs] == [0, 2, 1, 0]


def tree(base, *nodes):
    """Of (id, parent)."""
    ids, parents = zip(*nodes)
    return DraftBlock(base, tuple(map(DraftToken, ids)), parents)


def test_a_tree_descends_along_the_committed_tokens():
    block = tree(2, (5, -1), (6, -1), (7, 0), (8, 1), (9, 3), (7, 3))
    assert rebase(block, (1, 2)) == block
    assert rebase(block, (1, 2, 6)) == tree(3, (8, -1), (9, 0), (7, 0))
    assert rebase(block, (1, 2, 6, 8, 7)) == DraftBlock(5)
    assert rebase(block, (1, 2, 9)) is None and rebase(block, (1, 2, 5, 7, 7)) is None


def test_the_path_that_tokens_take_through_a_block():
    block = tree(2, (5, -1), (6, -1), (7, 0), (8, 1))
    assert [follow_path(block, path) for path in ((5, 7, 1), (6, 8), (6, 7), (9,), ())] == [
        (0, 2),
        (1, 3),
        (1,),
        (),
        (),
    ]
    assert follow_path(DraftBlock(2, (DraftToken(5), DraftToken(6))), (5, 9)) == (0,)


def test_the_first_branch_of_a_tree_is_a_chain():
    block = tree(2, (5, -1), (6, -1), (7, 0), (8, 1), (9, 2))
    assert likeliest_path(block).ids == (5, 7, 9) and not likeliest_path(block).parents
    chain = DraftBlock(2, (DraftToken(5), DraftToken(6)))
    assert likeliest_path(chain) is chain
