"""An engine that is lost ends the loop and no text: readers lose their streams, and continue elsewhere.

Run: pytest tests/test_lost_engine.py
"""

from __future__ import annotations

import asyncio

import pytest

from opensled.core.errors import EngineLost
from opensled.core.messages import DraftToken
from tests.fakes import FakeEngine
from tests.test_kv_pressure import PARAMS, Pressed
from verify_server.round import step
from verify_server.rules.base import AcceptanceResult, DraftCheck

PATIENCE = 20.0


class Lost(FakeEngine):
    """It is lost in a step, or when it puts the KV of a tree in order."""

    error = EngineLost("a process of it has ended")

    def forward(self, segments):
        raise self.error

    def compact(self, blocks, moves):
        raise self.error


def test_a_lost_engine_ends_the_loop_and_no_text() -> None:
    """An error of the step would end the texts."""
    pressed = Pressed(0.0)
    pressed.loop.machine.target.engine = Lost(num_blocks=10, block_size=4)
    with pytest.raises(EngineLost, match="a process of it"):
        asyncio.run(asyncio.wait_for(pressed.loop.run(), PATIENCE))
    pressed.loop.close()
    assert len(pressed.loop.machine.sessions) == 2 and not pressed.loop.machine.stats.failures


def test_an_engine_lost_between_step_and_compaction_is_no_error_of_one_session() -> None:
    pressed = Pressed(0.0)
    machine = pressed.loop.machine
    [item, *_] = machine.fit(machine.plan(0.0).slices, 0.0)
    twins = DraftCheck((DraftToken(5), DraftToken(6)), 30, PARAMS, b"", parents=(-1, -1))
    with pytest.raises(EngineLost):
        step._compact(
            Lost(num_blocks=10, block_size=4), item._replace(check=twins), AcceptanceResult(1, 7, path=(1,))
        )
