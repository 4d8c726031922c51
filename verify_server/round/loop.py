"""Drives the rounds of a server with an event loop, a thread for the engine, and a clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf

from opensled.core.messages import Draft
from verify_server.round.engine_thread import EngineThread
from verify_server.round.machine import Sleep, StepMachine, Work
from verify_server.round.outbox import Outbox
from verify_server.round.session import Session

log = logging.getLogger(__name__)

# Turns of the event loop, some microseconds each, for which a step waits for drafts that are arriving. Chosen: a hop to
# the engine's thread and back costs as much as two rounds of a session.
GATHER_TURNS = 8


class VerifyLoop:
    """Runs a `StepMachine` and wakes it when something has changed."""

    def __init__(self, machine: StepMachine, clock: Callable[[], float]) -> None:
        """`clock`: in seconds."""
        self.machine, self.clock = machine, clock
        self._sleeper: asyncio.Future[None] | None = None
        self._thread = EngineThread()

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await self._gather()
            begun = self.machine.begin(self.clock())
            if isinstance(begun, Work):
                await self._round(begun)
            else:
                await self._sleep(begun)

    def add(self, session: Session) -> None:
        """See `StepMachine.add`."""
        self.machine.add(session, self.clock())
        self.wake()

    def attach(self, session: Session, known: int) -> Outbox:
        """See `Session.attach`."""
        outbox = session.attach(known)
        self.wake()
        return outbox

    def submit(self, session: Session, draft: Draft) -> bool:
        """See `Session.submit`."""
        gains = session.submit(draft, self.clock())
        self.wake()
        return gains

    def listen(self, session: Session) -> None:
        """The device of the session sends no more drafts, but still reads."""
        session.listen()
        self.wake()

    def remove(self, session: Session) -> None:
        """See `StepMachine.remove`."""
        self.machine.remove(session)
        self.wake()

    def wake(self) -> None:
        """Something changed: plan again."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def close(self) -> None:
        """Wait for the step that is computed."""
        self._thread.close()

    async def _round(self, work: Work) -> None:
        """Run one step in the engine's thread, then the server drafts, while the verdicts on the step leave."""
        machine, started = self.machine, self.clock()
        try:
            outcomes = await self._thread.run(machine.target.step, work.items)
        except Exception:
            log.exception("a step over %d sessions failed", len(work.items))
            outcomes = None
        now = self.clock()
        asks = machine.end(work, outcomes, now, now - started)
        if asks:
            machine.take(await self._thread.run(machine.target.draft, asks))

    async def _gather(self) -> None:
        """Let arriving drafts join the step; return at once if no device is drafting, or if all sessions rest."""
        if self.machine.rests:
            return
        for _ in range(GATHER_TURNS):
            if not self.machine.awaits_draft:
                return
            await asyncio.sleep(0)

    async def _sleep(self, sleep: Sleep) -> None:
        """Until `wake` is called or the time has come; nothing can have arrived since the plan was made."""
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = None
        if sleep.until < inf:
            timer = loop.call_later(max(0.0, sleep.until - self.clock()), self.wake)
        try:
            await self._sleeper
        finally:
            if timer is not None:
                timer.cancel()
