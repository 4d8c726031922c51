"""Threads for one kind of work that keeps a processor busy and that the event loop must not wait for.

Each kind has a pool of its own, so no kind can hold up another one. In a pool a tenant has few threads at a time, and
those who wait are served in order of arrival, so a tenant holds up mostly itself.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeVar

from opensled.core.errors import Overloaded
from opensled.process.fork_server import RETRY_SECONDS, STOP, Stop

MAX_WAITING = 256  # of a tenant, as many as a server has sessions by default; chosen

T = TypeVar("T")
Spent = Callable[[float], object]


class TenantPool:
    """`threads` threads for the work called `name`, at most `each` of a tenant; for one event loop."""

    def __init__(self, name: str, threads: int, each: int = 1) -> None:
        self._name, self._each = name, each
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = asyncio.Semaphore(threads)
        self._turns: dict[str, _Turns] = {}

    async def run(self, tenant: str, work: Callable[[], T], spent: Spent | None = None) -> T:
        """The result of `work` in a thread. Raises what it raises, and Overloaded if too much of the tenant's waits.

        `spent` is told the seconds of processor time that the thread needed, also for work that fails.

        If the caller is cancelled, `fork_server.STOP` is set for the work. Its thread counts as taken until
        the work has ended.
        """
        stop, context = Stop(), contextvars.copy_context()
        context.run(STOP.set, stop)
        with await self._enter(tenant) as leave:
            loop = asyncio.get_running_loop()
            if spent is not None:
                work = partial(_measure_time, work, partial(_tell, loop, spent))
            running = loop.run_in_executor(self._executor, context.run, work)
            running.add_done_callback(partial(_leave, leave.pop_all()))
        try:
            return await asyncio.shield(running)
        finally:
            stop.set()

    async def _enter(self, tenant: str) -> ExitStack:
        """Wait for a thread; closing the stack gives it back."""
        turns = self._turns.setdefault(tenant, _Turns(self._each))
        if turns.taken >= MAX_WAITING:
            raise Overloaded(
                f"{MAX_WAITING} requests of your tenant wait for the {self._name} of this server; try again later",
                retry_after=RETRY_SECONDS,
            )
        with ExitStack() as leave:
            turns.taken += 1
            leave.callback(self._release_turn, tenant, turns)
            await turns.threads.acquire()
            leave.callback(turns.threads.release)
            await self._free.acquire()
            leave.callback(self._free.release)
            return leave.pop_all()

    def _release_turn(self, tenant: str, turns: _Turns) -> None:
        turns.taken -= 1
        if not turns.taken:
            del self._turns[tenant]

    def close(self) -> None:
        """Start nothing more. What runs is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class _Turns:
    """Of one tenant: the threads it may have, and how many requests have or want one."""

    def __init__(self, each: int) -> None:
        self.threads, self.taken = asyncio.Semaphore(each), 0


def _measure_time(work: Callable[[], T], spent: Spent) -> T:
    started = time.thread_time()
    try:
        return work()
    finally:
        spent(time.thread_time() - started)


def _tell(loop: asyncio.AbstractEventLoop, spent: Spent, seconds: float) -> None:
    with suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(spent, seconds)


def _leave(leave: ExitStack, running: asyncio.Future[T]) -> None:
    leave.close()
    if not running.cancelled():
        running.exception()  # asyncio would log it as never read if the caller has gone
