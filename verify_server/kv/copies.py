"""The threads in which KV is copied while steps go on, and what the copies come to."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from verify_server.engine_thread import EngineThread

Done = Callable[[Exception | None, float], None]


class Copier(Protocol):
    """Runs copies of one direction, one after the other."""

    def start(self, work: Callable[[], None], done: Done) -> None:
        """Run `work`; then `done` is called in the event loop's thread, with its error and its seconds."""

    def close(self) -> None:
        """Wait for the copies that have begun or wait."""


class CopyThread:
    """A `Copier` in a thread that starts with the first copy."""

    def __init__(self, name: str) -> None:
        self._thread = EngineThread(name)
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], None], done: Done) -> None:
        task = asyncio.get_running_loop().create_task(self._run(work, done))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, work: Callable[[], None], done: Done) -> None:
        try:
            seconds = await self._thread.run(_timed, work)
        except Exception as error:
            done(error, 0.0)
        else:
            done(None, seconds)

    def close(self) -> None:
        self._thread.close()


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@dataclass
class SwapStats:
    """What has moved since the start; by direction, `out` of the engine's memory or back `in`."""

    copies: Counter[str] = field(default_factory=lambda: Counter({"out": 0, "in": 0}))
    bytes: Counter[str] = field(default_factory=lambda: Counter({"out": 0, "in": 0}))
    seconds: dict[str, float] = field(default_factory=lambda: {"out": 0.0, "in": 0.0})
    failed: int = 0  # copies that ended by an error
    restored: int = 0  # positions that came back, which would have been computed again

    def copied(self, direction: str, moved: int, seconds: float) -> None:
        """A copy of `moved` bytes."""
        self.copies[direction] += 1
        self.bytes[direction] += moved
        self.seconds[direction] += seconds
