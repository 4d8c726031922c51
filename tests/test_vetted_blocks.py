"""When a relay's vetted tokens leave for the server above, and what stands in a block."""

import asyncio
from types import SimpleNamespace

from edge_client.round.draft_job import BlockBudget
from opensled.core.protocol import EndRules, Truth
from relay.survival import Survival
from relay.uplink import VettedBlocks
from relay.vetting import Vetting
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.round.sequence import Sequence

ENDS = EndRules(frozenset(), frozenset(), 100)


def vetted(count, agreed=True, full=False, confirmed=3):
    """A sequence with so many vetted tokens behind three confirmed ones."""
    sequence = Sequence((1, 2, 3)[:confirmed], confirmed, ENDS, BlockTable(BlockPool(0, 1)))
    sequence.ahead = count if full else 100
    sequence.truth.decide(((1, 2, 3)[confirmed:] + tuple(range(10, 10 + count))), "", final=False)
    vetting = Vetting(SimpleNamespace(sequence=sequence, riders=()), Survival())
    vetting.agreed = [agreed] * len(sequence.truth.vetted)
    return vetting


def block_of(vetting, *, length=8, bound=0.4, hint=None):
    """The ids of the block that leaves now; None = it is to grow."""

    async def scenario():
        blocks, budget = VettedBlocks(vetting, length, bound), BlockBudget(8, hint=hint)
        future = blocks.draft(Truth((1, 2, 3)), budget)
        return future.result().block.ids if future.done() else None

    return asyncio.run(scenario())


def test_a_block_leaves_when_it_is_full_doubtful_or_at_an_end():
    assert block_of(vetted(2)) is None
    assert block_of(vetted(8)) == tuple(range(10, 18)) == block_of(vetted(11))
    assert block_of(vetted(3), hint=2) == (10, 11)
    assert block_of(vetted(2, agreed=False)) == (10, 11)  # 0.55 ** 2 < 0.4
    assert block_of(vetted(1, agreed=False)) is None
    assert block_of(vetted(1, full=True)) == (10,)
    assert block_of(vetted(0, full=True)) is None


def test_a_block_is_no_longer_than_the_longest_one_that_the_server_above_takes():
    """`block_of` has a budget of eight."""
    assert block_of(vetted(20), length=12) == tuple(range(10, 18))


def test_blocks_behind_what_is_not_applied_yet_wait():
    assert block_of(vetted(8, confirmed=2)) is None
