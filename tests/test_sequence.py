"""A sequence: confirmed <= known, truncation down to what is confirmed, prefixes of confirmed text only."""

from __future__ import annotations

import pytest

from opensled.messages import DraftBlock, DraftToken
from opensled.protocol import EndRules
from scheduler.plan import Slice
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.sequence import Sequence

PROMPT = list(range(1, 10))  # two full blocks of four, and one token
ENDS = EndRules(frozenset({0}), frozenset(), 30)
SIZE = 4


def pool(blocks: int = 16) -> BlockPool:
    return BlockPool(blocks, SIZE, prefix_key=b"k" * 32)


def sequence(memory: BlockPool, tokens: list[int] = PROMPT) -> Sequence:
    return Sequence(tokens, len(tokens), ENDS, BlockTable(memory))


def step(each: Sequence, *draft: int) -> None:
    """Compute all that is known and a draft behind it."""
    each.segment(Slice(1, each.uncomputed, True), DraftBlock(len(each), tuple(map(DraftToken, draft))))


def test_a_commit_confirms_and_rolls_back_the_kv_of_what_was_rejected() -> None:
    each = sequence(pool())
    step(each, 10, 11, 99)
    assert each.commit((10, 11, 12), num_accepted=2) == (10, 11, 12)
    assert (len(each), each.confirmed, each.computed) == (12, 12, 11)
    assert len(each.table.blocks) == 3, "the block of the rejected token is given back"


def test_local_tokens_are_known_but_not_confirmed_and_can_be_taken_back() -> None:
    each = sequence(pool())
    step(each)
    each.commit((10,), 0)
    step(each, 11, 12, 13, 14)
    assert each.extend((11, 12, 13, 14, 15), num_accepted=4) == (11, 12, 13, 14, 15)
    assert (each.confirmed, len(each), each.computed) == (10, 15, 14)
    each.truncate(12)
    assert each.tokens == [*PROMPT, 10, 11, 12] and each.computed == 11
    each.confirm(11)
    with pytest.raises(AssertionError):
        each.truncate(10)
    with pytest.raises(AssertionError):
        each.confirm(10)
    with pytest.raises(AssertionError):
        each.confirm(13)
    each.truncate(11)
    assert each.tokens == [*PROMPT, 10, 11] and each.computed == 10


def test_an_end_that_is_taken_back_is_no_end() -> None:
    each = sequence(pool())
    step(each)
    each.extend((10, 0), num_accepted=0)
    assert each.finish_reason == "eos"
    each.truncate(10)
    assert each.finish_reason == "" and each.uncomputed == 1


def test_prefixes_are_published_for_confirmed_tokens_only() -> None:
    memory = pool()
    first = sequence(memory)
    step(first)
    first.extend((10, 11, 12, 13, 14, 15, 16), num_accepted=0)
    step(first, 17)
    first.extend((17, 18), num_accepted=1)
    assert first.computed == 17 and first.confirmed == 9
    text = [*PROMPT, 10, 11, 12, 13, 14, 15, 16, 17]
    assert adopted(memory, text) == 8, "only the blocks of the prompt are found"
    first.confirm(13)
    assert adopted(memory, text) == 12
    first.truncate(13)
    first.confirm(13)
    assert first.computed == 12 and first.table.is_own(12), "the last confirmed token is computed again"


def adopted(memory: BlockPool, tokens: list[int]) -> int:
    """Positions that a new sequence of these tokens need not compute."""
    other = sequence(memory, tokens)
    other.adopt_kv()
    found = other.computed
    other.forget_kv()
    return found


def test_nothing_is_adopted_for_tokens_that_are_not_confirmed() -> None:
    memory = pool()
    writer = sequence(memory, [*PROMPT, 10, 11, 12, 13])
    step(writer)
    writer.commit((14,), 0)
    reader = sequence(memory)
    step(reader)
    reader.extend((10, 11, 12, 13), num_accepted=0)
    reader.forget_kv()
    reader.adopt_kv()
    assert reader.computed == 8, "the third block holds tokens that may still be taken back"


def test_lost_kv_is_computed_again_from_the_start() -> None:
    each = sequence(pool())
    step(each)
    each.commit((10,), 0)
    each.forget_kv()
    assert (each.computed, each.uncomputed, each.table.blocks) == (0, 10, [])
