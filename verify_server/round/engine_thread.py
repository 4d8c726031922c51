"""The only thread that uses the engine: it runs one call after the other."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")  # of a call in the engine's thread
T = TypeVar("T")  # and its result


class _Call(NamedTuple):
    """A call to run, and the future of the event loop that waits for it."""

    work: Callable[[], Any]
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop

    def run(self) -> None:
        """In the engine's thread."""
        if self.answer.cancelled():
            return
        try:
            result, error = self.work(), None
        except BaseException as raised:
            result, error = None, raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for this
            self.loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: object, error: BaseException | None) -> None:
        """In the event loop."""
        if self.answer.done():  # cancelled meanwhile
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)


class EngineThread:
    """Starts with the first call.

    `ThreadPoolExecutor` serves many threads and many callers, and costs several times as much in each step.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return or raise the result of `work`. A cancelled caller does not wait; a call that has begun goes on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._calls.put(_Call(lambda: work(*args, **kwargs), answer, loop))
        return await answer

    def close(self) -> None:
        """Wait for all calls, then end the thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call  # else it would keep its sessions until the next one
