"""KV bookkeeping: no leak, no alias, truncate is rollback. Run: pytest tests/test_kv.py"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_server.kv import BlockPool, BlockTable, OutOfBlocks

moves = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["grow", "truncate"]), st.integers(0, 40)), max_size=60
)


@given(moves=moves, num_blocks=st.integers(1, 20), block_size=st.integers(1, 8))
def test_every_block_has_one_owner_or_is_free(moves, num_blocks, block_size):
    pool = BlockPool(num_blocks, block_size)
    tables = [BlockTable(pool) for _ in range(4)]
    for which, move, length in moves:
        table, before = tables[which], list(tables[which].blocks)
        try:
            getattr(table, move)(length)
        except OutOfBlocks:
            assert table.blocks == before
        held = [number for table in tables for number in table.blocks]
        assert len(set(held)) == len(held) and set(held) <= set(range(num_blocks))
        assert len(held) + pool.num_free == num_blocks
    for table in tables:
        table.truncate(0)
    assert pool.num_free == num_blocks


@given(length=st.integers(1, 60), keep=st.integers(0, 60), again=st.integers(0, 60))
def test_truncate_keeps_the_blocks_of_what_stays(length, keep, again):
    pool = BlockPool(40, 4)
    table = BlockTable(pool)
    table.grow(length)
    before, keep = list(table.blocks), min(keep, length)
    table.truncate(keep)
    assert table.blocks == before[: -(-keep // 4)]
    table.grow(again)
    assert table.blocks[: -(-keep // 4)] == before[: -(-keep // 4)]
    assert len(table.blocks) == -(-max(keep, again) // 4)


def test_a_block_given_back_twice_is_our_own_bug():
    pool = BlockPool(2, 4)
    blocks = pool.take(1)
    pool.give_back(blocks)
    with pytest.raises(AssertionError):
        pool.give_back(blocks)
