"""A sequence: confirmed <= known, nothing confirmed is ever taken back, prefixes of confirmed text only."""

import pytest

from opensled.core.errors import FutureBase
from opensled.core.messages import DraftBlock, DraftToken
from opensled.core.protocol import EndRules
from scheduler.plan import Slice
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.round.sequence import Sequence

PROMPT = list(range(1, 10))  # two full blocks of four, and one token
ENDS = EndRules(frozenset({0}), frozenset(), 30)
SIZE = 4


def pool(blocks: int = 16) -> BlockPool:
    return BlockPool(blocks, SIZE, prefix_key=b"k" * 32)


def sequence(memory: BlockPool, tokens: list[int] = PROMPT) -> Sequence:
    return Sequence(tokens, len(tokens), ENDS, BlockTable(memory))


def vetting(memory: BlockPool) -> Sequence:
    """A sequence that another server confirms."""
    each = sequence(memory)
    each.ahead = 16
    return each


def step(each: Sequence, *draft: int) -> None:
    """Compute all that is known and a draft behind it."""
    each.segment(Slice(1, each.uncomputed, True), DraftBlock(len(each), tuple(map(DraftToken, draft))))


def test_a_commit_confirms_and_rolls_back_the_kv_of_what_was_rejected():
    each = sequence(pool())
    step(each, 10, 11, 99)
    assert each.commit((10, 11, 12), num_accepted=2) == (10, 11, 12)
    assert (len(each), each.confirmed, each.computed) == (12, 12, 11)
    assert len(each.memory.blocks) == 3, "the block of the rejected token is given back"


def test_vetted_tokens_are_known_but_not_confirmed_and_can_be_taken_back():
    each = vetting(pool())
    step(each)
    each.commit((10,), 0)
    assert each.follow((10,), 1) == 1
    step(each, 11, 12, 13, 14)
    assert each.commit((11, 12, 13, 14, 15), num_accepted=4) == (11, 12, 13, 14, 15)
    assert (each.confirmed, len(each), each.computed) == (10, 15, 14)
    assert each.follow((11, 12), 1) == 2, "what was vetted stays behind what is said above"
    assert each.tokens == [*PROMPT, 10, 11, 12, 13, 14, 15] and (each.confirmed, each.computed) == (11, 14)
    assert each.truth.rewinds == 0
    assert each.follow((12, 20, 21), 2) == 1
    assert each.tokens == [*PROMPT, 10, 11, 12, 20, 21] and (each.confirmed, each.computed) == (13, 12)
    assert each.truth.rewinds == 1


def test_behind_what_is_vetted_it_waits_and_a_draft_on_what_was_taken_back_is_stale():
    each = vetting(pool())
    each.ahead = 2
    step(each)
    each.commit((10,), 0)
    ahead = DraftBlock(13, (DraftToken(1),))
    with pytest.raises(FutureBase):
        each.rebase(ahead)
    assert not each.waits
    step(each, 11)
    each.commit((11, 12), 1)
    assert each.waits and not each.over
    each.follow((20,), 1)
    assert not each.waits and each.rebase(ahead) is None


def test_an_end_that_is_vetted_is_one_when_it_is_confirmed():
    each = vetting(pool())
    step(each)
    each.commit((10, 0), num_accepted=0)
    assert each.finish_reason == "eos" and each.waits and not each.over
    each.follow((10, 11), 2)
    assert each.finish_reason == "" and each.uncomputed == 2 and not each.over
    each.follow((0,), 0)
    assert each.finish_reason == "eos" and not each.over, "vetted above"
    each.follow((0,), 1)
    assert not each.finish_reason, "ends above may be others"
    each.follow((), 0, "stop")
    assert each.over and each.finish_reason == "stop"


def test_alone_it_has_the_last_word_from_what_no_target_confirms():
    each = vetting(pool())
    step(each)
    each.commit((10, 11), num_accepted=0)
    each.follow((10,), 1)
    each.decide_alone()
    assert (each.confirmed, each.unverified) == (11, 1)
    step(each)
    each.commit((0,), 0)
    assert each.over and (each.confirmed, each.unverified) == (12, 2)


def test_prefixes_are_published_for_confirmed_tokens_only():
    memory = pool()
    first = vetting(memory)
    step(first)
    first.commit((10, 11, 12, 13, 14, 15, 16), num_accepted=0)
    step(first, 17)
    first.commit((17, 18), num_accepted=1)
    assert first.computed == 17 and first.confirmed == 9
    text = [*PROMPT, 10, 11, 12, 13, 14, 15, 16, 17]
    assert adopted(memory, text) == 8, "only the blocks of the prompt are found"
    first.follow((10, 11, 12, 13), 4)
    assert adopted(memory, text) == 12
    first.follow((), 0, "stop")
    assert first.computed == 12 and first.memory.is_own(12), "the last confirmed token is computed again"


def adopted(memory: BlockPool, tokens: list[int]) -> int:
    """Positions that a new sequence of these tokens need not compute."""
    other = sequence(memory, tokens)
    other.adopt_kv(other.confirmed)
    found = other.computed
    other.forget_kv()
    return found


def test_nothing_is_adopted_for_tokens_that_are_not_confirmed():
    memory = pool()
    writer = sequence(memory, [*PROMPT, 10, 11, 12, 13])
    step(writer)
    writer.commit((14,), 0)
    reader = vetting(memory)
    step(reader)
    reader.commit((10, 11, 12, 13), num_accepted=0)
    reader.forget_kv()
    reader.adopt_kv(reader.confirmed)
    assert reader.computed == 8, "the third block holds tokens that may still be taken back"


def test_lost_kv_is_computed_again_from_the_start():
    each = sequence(pool())
    step(each)
    each.commit((10,), 0)
    each.forget_kv()
    assert (each.computed, each.uncomputed, each.memory.blocks) == (0, 10, [])
