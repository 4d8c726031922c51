"""Load on a fleet: users ask, devices answer, everything is noted. One process plays all devices, one is the server."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from lab.testbed.fleet import Fleet
from lab.testbed.load.hub_process import emulated, hubs
from lab.testbed.load.load import Item, Load, asked_by, due_times, start_of, thinking
from lab.testbed.load.records import Clock, RequestRecord, RunResult, ServerTotals, between, total
from lab.testbed.load.server_process import Running, emulation_of, serving
from lab.testbed.load.site import Seat, is_alone, site
from lab.testbed.traces import TraceSet
from opensled.core.errors import OpenSledError
from opensled.core.messages import ChatMessage, is_chat

PAUSE_S = 1.0  # a user whose request failed waits so long before the next one
GLANCES = 100  # how often a run tells how far it is

Progress = Callable[[float], None]


async def run_fleet(
    fleet: Fleet,
    items: Sequence[Item],
    traces: TraceSet | None,
    load: Load,
    progress: Progress = lambda share: None,
) -> RunResult:
    """Start the server and the devices of `fleet`, put `load` of `items` on them, and stop everything.

    Devices replay `traces`, but those that are `live`; without traces all run their real drafters. `progress` hears
    the share of the run that is over. Errors of single requests are in their records. Raises UsageError for a fleet
    that cannot run, and OpenSledError for a server that does not come up.
    """
    if is_alone(fleet):
        return await run_on(None, fleet, items, traces, load, progress)
    async with serving(fleet.server, fleet.dilation, traces) as server:
        result = await run_on(server, fleet, items, traces, load, progress)
    for name, value in emulation_of(server.process).items():
        result.emulation[name] = result.emulation.get(name, 0.0) + value
    return result


async def run_on(
    server: Running | None,
    fleet: Fleet,
    items: Sequence[Item],
    traces: TraceSet | None,
    load: Load,
    progress: Progress = lambda share: None,
) -> RunResult:
    """Like `run_fleet`, on a server that runs already: one of `fleet.server`, or None for devices alone."""
    result = RunResult(label(fleet), load.warmup, load.warmup + load.duration)
    async with AsyncExitStack() as stack:
        clock = Clock(fleet.dilation)
        relays = await stack.enter_async_context(hubs(fleet, server))
        seats = await stack.enter_async_context(site(fleet, server, relays, items, traces, clock))
        clock.restart()
        run = Run(clock, load, items, result.requests)
        result.server, result.hubs = await run.through(seats, server, relays, progress)
    result.emulation = dict(emulated(relays))
    return result


def label(fleet: Fleet) -> str:
    """ "emulated" as soon as anything is slowed down to a profile, else "real"."""
    profiles = [fleet.server.accelerator]
    profiles += [fleet.hub.accelerator, fleet.hub.link] if fleet.hub else []
    profiles += [name for group in fleet.groups for name in (group.device, group.link, group.user_link)]
    return "emulated" if any(profiles) else "real"


@dataclass
class Run:
    """One run's load."""

    clock: Clock
    load: Load
    items: Sequence[Item]
    records: list[RequestRecord]
    over: bool = False  # no user asks any more

    async def through(
        self, seats: Sequence[Seat], server: Running | None, relays: Sequence[Running], progress: Progress
    ) -> tuple[ServerTotals, ServerTotals]:
        """Warm up, measure, stop; what the server, and all relays, did within the measured window."""
        users = [asyncio.ensure_future(work) for work in self._users(seats)]
        start, end = self.load.warmup, self.load.warmup + self.load.duration
        try:
            await self._wait(0.0, start, progress)
            before = await _totals([server] if server else []), await _totals(relays)
            await self._wait(start, end, progress)
            after = await _totals([server] if server else []), await _totals(relays)
        finally:
            self.over = True
            for user in users:
                user.cancel()
            ends = await asyncio.gather(*users, return_exceptions=True)
        for each in ends:
            if isinstance(each, Exception):
                raise each
        return between(before[0], after[0]), between(before[1], after[1])

    async def _wait(self, start: float, end: float, progress: Progress) -> None:
        whole = self.load.warmup + self.load.duration
        steps = max(1, round(GLANCES * (end - start) / whole))
        for step in range(1, steps + 1):
            now = start + (end - start) * step / steps
            await self.clock.until(now)
            progress(now / whole)

    def _users(self, seats: Sequence[Seat]) -> list[Coroutine[Any, Any, None]]:
        if self.load.arrivals == "closed":
            return [self._closed(seat, len(seats)) for seat in seats]
        return [self._open(seats)]

    async def _closed(self, seat: Seat, users: int) -> None:
        """One user who asks again after each answer."""
        thought = thinking(seat.user, self.load)
        due = start_of(seat.user, users, self.load)
        for item in asked_by(seat.user, self.items, self.load):
            await self._talk(seat, item, due, thought)
            due = self.clock.now() + next(thought)

    async def _open(self, seats: Sequence[Seat]) -> None:
        """Requests that come when they come; each is a task of its own."""
        asked = [asked_by(seat.user, self.items, self.load) for seat in seats]
        thought = [thinking(seat.user, self.load) for seat in seats]
        async with asyncio.TaskGroup() as group:
            for number, due in enumerate(due_times(self.load)):
                user = number % len(seats)
                await self.clock.until(due)
                group.create_task(self._talk(seats[user], next(asked[user]), due, thought[user]))

    async def _talk(self, seat: Seat, item: Item, due: float, thought: Iterator[float]) -> None:
        """One item, and what its user says after each answer."""
        name, record = item.id, await self._ask(seat, item, due)
        for number, turn in enumerate(item.turns, 2):
            if record.error:
                break
            grown = _grown(item, record.text, turn)
            item = replace(item, id=f"{name} turn {number}", prompt=grown)
            record = await self._ask(seat, item, self.clock.now() + next(thought))

    async def _ask(self, seat: Seat, item: Item, due: float) -> RequestRecord:
        await self.clock.until(due)
        # Before Python 3.12 a cancel that meets the end of a farewell (asyncio.wait_for) is lost
        if self.over:
            raise asyncio.CancelledError
        record = RequestRecord(seat.user, seat.group, item.id, due, sent=self.clock.now())
        self.records.append(record)
        try:
            await seat.device.ask(item, record)
        # The latter: a recording that is not this target's text
        except (OpenSledError, AssertionError) as error:
            record.error = str(error) or type(error).__name__
            await asyncio.sleep(PAUSE_S * self.clock.dilation)
        return record


async def _totals(several: Sequence[Running]) -> ServerTotals:
    return total([await each.totals() for each in several])


def _grown(item: Item, answer: str, turn: str) -> tuple[ChatMessage, ...]:
    """The prompt with its answer and the next turn of its user."""
    chat = item.prompt
    assert is_chat(chat), "only a chat has further turns"
    return (*chat, ChatMessage("assistant", answer), ChatMessage("user", turn))
