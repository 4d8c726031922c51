"""The nemesis of one target: strikes by a seeded schedule in which every kind of fault comes once in each round."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lab.testbed.soak.account import Window
from lab.testbed.soak.faults import Ground, Strike
from opensled.core.errors import OpenSledError

log = logging.getLogger(__name__)

ROUNDS = 4  # of an hour: with six targets every kind strikes 24 times
MIN_SLOT_S = 4.0  # from one fault to the next
# Until every reader must hear again; a replica that starts on a busy machine takes minutes.
RECOVERY_S = 240.0
LATE = 1.25  # a full schedule may take so much longer than planned


@dataclass(frozen=True)
class Schedule:
    """When faults strike: `rounds` of all kinds within `seconds`, or as many as fit where that is short."""

    seconds: float
    kinds: int
    rounds: int = ROUNDS

    @property
    def slot(self) -> float:
        """Seconds from one fault to the next."""
        return max(MIN_SLOT_S, self.seconds / (self.kinds * self.rounds))

    @property
    def full(self) -> bool:
        """Whether all rounds are meant to happen."""
        return self.slot > MIN_SLOT_S

    def over(self, number: int, now: float) -> bool:
        """Whether fault `number`, from 0, comes too late `now`, in seconds since the start."""
        if self.full:
            return number >= self.kinds * self.rounds or now > LATE * self.seconds
        return now > self.seconds


class Nemesis:
    """Breaks one target. `offset`: share of a slot by which it is later than the others."""

    def __init__(
        self, ground: Ground, kinds: Mapping[str, Strike], schedule: Schedule, offset: float = 0.0
    ) -> None:
        self._ground, self._kinds, self._schedule = ground, kinds, schedule
        self._offset = offset * schedule.slot

    async def run(self) -> None:
        """Strike until the schedule is over."""
        clock = self._ground.account.clock
        start = clock() + self._offset
        for number, kind in enumerate(self.order(list(self._kinds), self._ground.random)):
            self._ground.turn = number // len(self._kinds)
            await asyncio.sleep(max(0.0, start + number * self._schedule.slot - clock()))
            if self._schedule.over(number, clock() - start):
                return
            await self._strike(kind)

    @staticmethod
    def order(kinds: list[str], chance: random.Random) -> Iterator[str]:
        """The kinds without end: round after round, each in an order of its own."""
        while True:
            yield from chance.sample(kinds, len(kinds))

    async def _strike(self, kind: str) -> None:
        """Inject one fault, heal it, and wait until every reader hears again."""
        ground = self._ground
        await self._until(lambda: any(reader.under_way for reader in ground.readers))
        window = ground.account.fault(kind, sum(reader.under_way for reader in ground.readers))
        log.info("%s: %s", ground.target.name, kind)
        try:
            await self._kinds[kind](ground, window)
        except OpenSledError as error:
            ground.account.wrong(f"{kind}: {error}")
        await self._mend(window)
        healed = ground.account.clock()
        if not await self._until(lambda: all(reader.heard_at > healed for reader in ground.readers)):
            ground.account.wrong(f"{kind} ({window.victim}): not every reader hears again")
        window.end = ground.account.clock()

    async def _mend(self, window: Window) -> None:
        ground = self._ground
        for name in await asyncio.to_thread(ground.target.mend):
            ground.account.notes[f"{window.kind} ended the {name}"] += 1
            if window.kind != "memory pressure":
                ground.account.wrong(f"the {name} ended by itself under {window.kind}")

    async def _until(self, condition: Callable[[], bool]) -> bool:
        """Whether it comes true before long."""
        clock = self._ground.account.clock
        deadline = clock() + RECOVERY_S
        while not condition():
            if clock() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True
