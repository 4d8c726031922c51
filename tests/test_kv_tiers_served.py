"""KV in two tiers in a serving loop with its own threads; what engines refuse; and sequences that change while away."""

from __future__ import annotations

import asyncio

import pytest

from opensled.errors import UsageError
from opensled.messages import SamplingParams
from opensled.protocol import EndRules
from tests.fakes import EOS, FakeEngine, OracleDrafter, continuation
from tests.system import ask, running
from tests.tiered import HeldCopies, TieredEngine, host_memory
from verify_server import costs
from verify_server.kv.blocks import BlockTable
from verify_server.kv.host_tier import HostTier
from verify_server.kv.pool import BlockPool
from verify_server.kv.swap import Stage
from verify_server.loop import VerifyLoop
from verify_server.sequence import Sequence
from verify_server.session_manager import SessionLimits

PARAMS = SamplingParams(temperature=0, max_tokens=24)
PROMPTS = [[1 + number] * 20 for number in range(8)]


class Forced(HostTier):
    """Whoever leaves does so, though its draft may have come meanwhile."""

    def park(self, session, must=False):
        return super().park(session, True)


def forced(*given, **options) -> VerifyLoop:
    host = host_memory(200)
    loop = VerifyLoop(*given, host=host, **options)
    loop.tier = Forced(loop.engine, loop.pool, host, loop.clock, loop._landed)
    return loop


def test_many_in_memory_for_few_are_served_with_threads_of_their_own(monkeypatch):
    """Everybody leaves whenever he may: all memory is kept free."""
    monkeypatch.setattr("verify_server.kv.tending.RESERVE", 1.0)
    engine = TieredEngine(num_blocks=30, block_size=4)

    async def body():
        options = {"limits": SessionLimits(max_sessions=8, linger=0.2), "loop_type": forced}
        async with running(engine, **options) as network:
            made = [
                ask(network, prompt, OracleDrafter(0.8, seed), PARAMS) for seed, prompt in enumerate(PROMPTS)
            ]
            answers = await asyncio.gather(*made)
            loop = network.manager.loop
            while loop.tier.travelling:
                await asyncio.sleep(0.001)
            for session in list(network.manager.remembered):
                network.manager.forget(session)
            assert loop.tier.pool.num_free == 200
            return answers, loop.tier.stats, loop.stats.preempted

    answers, stats, preempted = asyncio.run(body())
    assert [list(answer.tokens) for answer in answers] == [continuation(prompt, 24) for prompt in PROMPTS]
    assert stats.copies["out"] > 20 and stats.copies["in"] > 20 and not stats.failed
    assert stats.seconds["out"] > 0 and stats.bytes["in"] > 0 and preempted == 0


def test_engines_without_host_memory_refuse_it_with_the_way_out():
    with pytest.raises(UsageError, match="--engine torch"):
        costs.host_memory(FakeEngine(), 1000)
    assert costs.host_memory(FakeEngine(), 0) is None


def test_more_than_the_machine_has_is_refused(monkeypatch):
    host_kv = pytest.importorskip("verify_server.engine.host_kv")
    monkeypatch.setattr(host_kv, "free_host_bytes", lambda: 1000)
    memory = host_kv.KVMemory(1)
    memory.write(0, *[host_kv.torch.zeros(1, dtype=host_kv.torch.int64)], *[host_kv.torch.zeros(1, 2, 4)] * 2)
    with pytest.raises(UsageError, match="Lower it"):
        host_kv.allocated([memory], 100)


def test_copies_are_probed_before_the_first_session():
    found = costs.host_memory(TieredEngine(num_blocks=30), 100)
    assert found.num_blocks == 25 and found.out.seconds(10) > 0 and found.back.seconds(10) > 0


class Away:
    """One sequence whose KV is in host memory, or on its way."""

    def __init__(self) -> None:
        engine = TieredEngine(num_blocks=8, block_size=4)
        self.pool = BlockPool(8, 4, prefix_key=b"key")
        self.copies = HeldCopies(), HeldCopies()
        self.tier = HostTier(engine, self.pool, host_memory(20), lambda: 0.0, lambda: None, self.copies)
        ends = EndRules(frozenset({EOS}), frozenset(), 60)
        self.sequence = Sequence([5] * 18, 10, ends, BlockTable(self.pool, "t"))
        self.sequence.confirmed = 10
        self.sequence.table.grow(17)
        self.sequence.computed = 17
        self.sequence._publish()
        self.in_step, self.rests, self.tenant = False, True, "t"

    def leave(self) -> None:
        assert self.tier.park(self, must=True)

    def come(self) -> None:
        self.tier.fetch(self)


@pytest.mark.parametrize("when", ["leaving", "away", "coming"])
def test_what_a_hub_takes_back_or_confirms_while_it_is_away(when):
    """Its tokens are confirmed, or taken back, at any time: blocks follow, and become findable when they are there."""
    away = Away()
    sequence, table = away.sequence, away.sequence.table
    away.leave()
    if when != "leaving":
        away.copies[0].end()
        assert table.swap.stage is Stage.AWAY and away.pool.num_free == 8
    if when == "coming":
        away.come()
    sequence.confirm(13)
    sequence.truncate(14)
    if when == "leaving":
        away.copies[0].end()
    if when != "coming":
        assert len(table.swap.host) == 4
        away.come()
    away.copies[1].end()
    assert table.swap is None and len(table.blocks) == 4 and table.frozen == 12
    assert away.tier.pool.states()["used"] == 0
    sequence.forget_kv()
    assert away.pool.num_free == 8 and away.tier.pool.num_free == 20
    assert sequence.table.adopt([5] * 18, 0) == 12, "what was confirmed while it was away can be found"


def test_kv_that_may_be_wrong_is_found_in_neither_tier():
    away = Away()
    away.leave()
    away.copies[0].end()
    away.come()
    away.copies[1].end()
    table = away.sequence.table
    assert away.tier.pool.states()["cached"] == 2
    away.tier.withdraw(table)
    table.withdraw()
    away.sequence.forget_kv()
    assert table.adopt([5] * 18, 0) == 0
    assert away.tier.pool.states()["cached"] == 0 and away.tier.pool.num_free == 20
