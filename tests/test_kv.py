"""KV bookkeeping: no leak, no alias, truncate is rollback; who is evicted, and who may hold how much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_server.kv.blocks import BlockPool, BlockTable, OutOfBlocks, OverBudget

KEY = b"a secret of this test"
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


# -- blocks that can be found again -----------------------------------------------------------------------------


def computed(pool: BlockPool, tokens: list[int], tenant: str = "", budget: int = 0) -> BlockTable:
    """The table of a session that computed all of `tokens`, or all that it could not take over."""
    table = BlockTable(pool, tenant, budget)
    table.adopt(tokens, 0)
    table.grow(len(tokens))
    table.publish(tokens, len(tokens))
    return table


def text(kind: int, length: int) -> list[int]:
    return [kind] * length


def test_a_blocks_state_is_one_of_four():
    pool = BlockPool(10, 4, prefix_key=KEY)
    first = computed(pool, text(1, 9))
    assert pool.states() == {"free": 7, "cached": 0, "used": 3, "shared": 0}
    second = computed(pool, text(1, 9))
    assert pool.states() == {"free": 6, "cached": 0, "used": 2, "shared": 2}
    assert pool.hits == 8
    first.clear()
    assert pool.states() == {"free": 7, "cached": 0, "used": 3, "shared": 0}
    second.clear()
    assert pool.states() == {"free": 8, "cached": 2, "used": 0, "shared": 0}


def test_unused_blocks_are_taken_first_then_what_was_left_longest_ago():
    pool = BlockPool(8, 4, prefix_key=KEY)
    for kind in (1, 2):
        computed(pool, text(kind, 8)).clear()
    computed(pool, text(1, 9)).clear()  # used once more: now 2 was left longest ago
    assert pool.states()["cached"] == 4
    other = BlockTable(pool)
    other.grow(4 * 4)
    assert pool.evictions == 0
    other.grow(6 * 4)
    assert pool.evictions == 2
    assert BlockTable(pool).adopt(text(2, 9), 0) == 0
    assert BlockTable(pool).adopt(text(1, 9), 0) == 8


def test_the_end_of_a_text_is_forgotten_before_its_beginning():
    pool = BlockPool(4, 4, prefix_key=KEY)
    computed(pool, text(1, 16)).clear()
    BlockTable(pool).grow(4)
    assert BlockTable(pool).adopt(text(1, 17), 0) == 12


def test_the_engine_hears_of_what_lost_its_content_and_of_nothing_else():
    heard: list[int] = []
    pool = BlockPool(4, 4, heard.extend, KEY)
    table = computed(pool, text(1, 10))
    full, partial = table.blocks[:2], table.blocks[2]
    table.clear()
    assert heard == [partial]
    other = BlockTable(pool)
    other.grow(12)
    assert heard == [partial, full[1]] and other.blocks[2] == full[1]
    other.grow(16)
    assert heard == [partial, full[1], full[0]]
    assert BlockTable(pool).adopt(text(1, 10), 0) == 0


def test_what_is_withdrawn_is_not_found_by_anybody_and_stays_with_those_who_hold_it():
    pool = BlockPool(8, 4, prefix_key=KEY)
    sick, other = computed(pool, text(1, 9)), computed(pool, text(1, 9))
    sick.withdraw()
    assert other.blocks[:2] == sick.blocks[:2]
    assert BlockTable(pool).adopt(text(1, 9), 0) == 0
    sick.clear()
    other.clear()
    assert pool.states() == {"free": 8, "cached": 0, "used": 0, "shared": 0}


def test_what_is_committed_is_never_rolled_back():
    table = computed(BlockPool(8, 4, prefix_key=KEY), text(1, 9))
    table.truncate(8)
    with pytest.raises(AssertionError):
        table.truncate(7)


def test_blocks_that_others_may_read_are_not_written():
    table = computed(BlockPool(8, 4, prefix_key=KEY), text(1, 9))
    assert table.frozen == 8
    assert table.is_own(8) and not table.is_own(7)


def test_a_block_that_was_begun_is_exchanged_for_a_full_one():
    pool = BlockPool(8, 4, prefix_key=KEY)
    slow = BlockTable(pool)
    slow.grow(6)
    slow.publish(text(1, 12), 6)
    quick = computed(pool, text(1, 12))
    assert slow.adopt(text(1, 12), 6) == 8
    assert slow.blocks == [slow.blocks[0], quick.blocks[1]]
    slow.clear()
    quick.clear()
    assert pool.num_free == 8


def test_without_a_key_nothing_is_found():
    pool = BlockPool(8, 4)
    table = computed(pool, text(1, 9))
    assert table.frozen == 0
    assert BlockTable(pool).adopt(text(1, 9), 0) == 0
    table.clear()
    assert pool.states()["free"] == 8 and pool.recent_prefixes() == frozenset()


# -- tenants ----------------------------------------------------------------------------------------------------


def test_a_tenant_holds_no_more_than_his_budget_all_sessions_together():
    pool = BlockPool(20, 4, prefix_key=KEY)
    first, second = BlockTable(pool, "a", 18), BlockTable(pool, "a", 18)  # 5 blocks
    first.grow(12)
    second.grow(8)
    with pytest.raises(OverBudget):
        second.grow(9)
    assert len(second.blocks) == 2 and pool.count_held("a") == 5
    BlockTable(pool, "b").grow(40)
    first.clear()
    second.grow(9)


def test_what_a_tenants_sessions_share_counts_once_and_what_is_only_cached_not_at_all():
    pool = BlockPool(20, 4, prefix_key=KEY)
    first = computed(pool, text(1, 17), "a", 24)
    second = computed(pool, text(1, 17), "a", 24)
    assert pool.count_held("a") == 6
    first.clear()
    second.clear()
    assert pool.count_held("a") == 0
    third = BlockTable(pool, "a", 8)  # with a smaller budget he takes over less
    assert third.adopt(text(1, 17), 0) == 8


def test_who_holds_more_than_an_equal_share():
    pool = BlockPool(12, 4)
    BlockTable(pool, "a").grow(7 * 4)
    assert not pool.is_over_share("a")  # alone
    BlockTable(pool, "b").grow(5 * 4)
    assert pool.is_over_share("a") and not pool.is_over_share("b")
