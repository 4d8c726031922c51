"""Every tier of a hierarchy is killed in mid-answer, at random moments: all that finish write the target's text."""

import asyncio
import random
from dataclasses import replace

import pytest

from tests.loops import cancelled
from tests.serving import PROMPT
from tests.three_tiers import EXPECTED, QUICK, TASK, device, ids_of, read, three

PATIENT = replace(QUICK, first_open=60.0)  # a newcomer, too, outlasts every kill


class Nemesis:
    """Kills a tier while answers are under way there, each of them as often as the others."""

    def __init__(self, network, upper, readers):
        self._networks, self._readers = {"relay": network, "target": upper}, readers
        self.kills, self._random = dict.fromkeys(("device", "relay", "target"), 0), random.Random(4)

    async def strike(self):
        await asyncio.sleep(self._random.uniform(0.02, 0.12))
        tier = min(self.kills, key=self.kills.get)
        sessions = self._networks.get(tier, self._networks["relay"]).manager.remembered
        if any(session.has_reader and len(session.sequence) > len(PROMPT) for session in sessions):
            self.kills[tier] += 1
            await (self._kill_device() if tier == "device" else self._kill(self._networks[tier]))

    async def _kill_device(self):
        victim = self._random.choice(sorted(self._readers, key=id))
        await cancelled(victim)

    async def _kill(self, network):
        await network.lose()
        await asyncio.sleep(0.002)
        network.find()


@pytest.mark.parametrize("kills", [25, pytest.param(100, marks=pytest.mark.long)])
async def test_every_tier_is_killed_in_mid_answer(kills):
    task = replace(TASK, params=replace(TASK.params, max_tokens=24))

    async def answer(made):
        assert ids_of(await read(made, task)) == EXPECTED[:24]

    answered = 0
    async with three(patience=PATIENT) as (network, _, upper), device(network, patience=PATIENT) as made:
        readers: set[asyncio.Task] = set()
        nemesis = Nemesis(network, upper, readers)
        while min(nemesis.kills.values()) < kills or answered <= kills / 5:
            readers |= {asyncio.ensure_future(answer(made)) for _ in range(4 - len(readers))}
            await nemesis.strike()
            done = {reader for reader in readers if reader.done()}
            answered += sum(not reader.cancelled() and reader.result() is None for reader in done)
            readers -= done
        await asyncio.gather(*readers)
