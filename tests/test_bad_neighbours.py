"""What one peer gets wrong never costs another his place, his KV or his words."""

from dataclasses import replace

import pytest

from opensled.core.errors import EngineError, InvalidRequest, Unsupported
from opensled.core.messages import Open, SamplingParams
from scheduler.plan import Slice
from tests.fakes import VOCAB, FakeEngine
from tests.system import running
from tests.test_session import PROMPT, Bench
from verify_server.admission.session_manager import SessionLimits
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.round.step import run_step
from verify_server.rules.base import AcceptanceResult, AcceptanceRule

PARAMS = SamplingParams(temperature=0, max_tokens=20)
BAD_OPENS = {
    "a bad id": (Open((VOCAB,), PARAMS), InvalidRequest),
    "a bad rule": (Open((1,), PARAMS, rule="telepathy"), Unsupported),
    "a bad stop id": (Open((1,), replace(PARAMS, stop_ids=(VOCAB,))), InvalidRequest),
    "a prompt too long": (Open((1,) * 200, PARAMS), InvalidRequest),
}


@pytest.mark.parametrize("name", BAD_OPENS)
async def test_a_bad_open_pushes_nobody_out(name):
    """At a full server an absent session gives way to a newcomer, but not to one who is refused anyway."""
    message, error = BAD_OPENS[name]
    async with running(FakeEngine(), limits=SessionLimits(max_sessions=1, linger=60)) as network:
        manager = network.manager
        absent, _ = await manager.open(Open((3, 1), PARAMS), "local")
        absent.attach(2)
        manager.leave(absent)
        with pytest.raises(error):
            await manager.open(message, "local")
        assert manager.remembered == (absent,)


class Broken(AcceptanceRule):
    """A rule with a bug."""

    def decide(self, check, scores):
        raise ZeroDivisionError


def test_a_bug_in_one_sequences_rule_fails_that_sequence_alone():
    sick, well = Bench(), Bench()
    pool = BlockPool(64, 4)
    sick.session.terms = replace(sick.session.terms, rule=Broken())
    sick.session.sequence.memory, well.session.sequence.memory = BlockTable(pool), BlockTable(pool)
    work = [bench.session.plan(Slice(1, len(PROMPT), True), 0.0) for bench in (sick, well)]
    expected = well.right(1)[0]
    failure, decision = run_step(FakeEngine(), work)
    assert isinstance(failure, EngineError) and decision == AcceptanceResult(0, expected)
