"""A stream whose frames leave at the multiples of a tick only, one at each of them; both ends use it.

Messages that come meanwhile wait for the tick; where none waits, a dummy leaves. Dummies that arrive are dropped here,
before any rule of the protocol. A frame whose tick was missed leaves at the next multiple.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from opensled.messages import Dummy
from opensled.shaping import LEAST_FRAMES, is_whole

# Messages that wait for `receive`; while so many wait, no frame is read. Chosen, as `MAX_UNREAD`.
MAX_ARRIVED = 64

# Seconds for frames that a slow link or a busy machine holds up. Chosen: round trips of a slow link.
SLACK_SECONDS = 5.0

Join = Callable[[Any, Any], "Any | None"]  # two messages as one; None = they cannot be


class TickedStream:
    """The send and the receive of one end of a stream, by the clock. `close` it at the end."""

    def __init__(
        self,
        send: Callable[[Any], Awaitable[None]],
        receive: Callable[[], Awaitable[Any]],
        tick: float,
        join: Join = lambda waiting, message: None,
        start: float | None = None,
        is_end: Callable[[Any], bool] = lambda message: message is None,
    ) -> None:
        """`tick` in seconds; `start`: multiples count from here, in seconds of the loop's clock, None = now.

        `receive` gives something that `is_end`, or raises, when the other end is gone.
        """
        loop = asyncio.get_running_loop()
        self._clock, self._send, self._receive, self._join = loop.time, send, receive, join
        self._is_end = is_end
        self._tick, self._start = tick, loop.time() if start is None else start
        self._waiting: Any = None
        self._leaving = False  # a frame is being written
        self.frames = 0  # that have left
        self._ticked: asyncio.Future[None] = loop.create_future()  # a frame has left
        self._arrived: asyncio.Queue[Any] = asyncio.Queue(MAX_ARRIVED)
        self._covering = self._filling = False
        self._sending = asyncio.ensure_future(self._beat())
        self._reading = asyncio.ensure_future(self._read())

    async def send(self, message: Any) -> None:
        """Have `message` leave at the next tick; waits while another one does. Raises what ended the sending."""
        joined = None
        while self._waiting is not None and joined is None and not self._sending.done():
            joined = self._join(self._waiting, message)
            if joined is None:
                await self._after_tick()
        if self._sending.done():
            self._sending.result()
        self._waiting = message if joined is None else joined

    async def receive(self) -> Any:
        """The next message that is no dummy; then what `receive` of the stream below gave at its end, or raised."""
        if not self._arrived.empty():
            return self._arrived.get_nowait()
        taking = asyncio.ensure_future(self._arrived.get())
        try:
            await asyncio.wait({taking, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            return taking.result() if taking.done() else self._reading.result()
        finally:
            taking.cancel()

    async def flush(self) -> None:
        """Wait until what was sent has left; not for long, for a peer may read nothing more."""
        await self._until(lambda: self._waiting is None and not self._leaving, SLACK_SECONDS)

    async def fill(self) -> None:
        """`flush`, then wait until the answer may end after so many frames (`is_whole`), or the other end is gone.

        What arrives meanwhile is dropped.
        """
        self._drop_arrivals()
        await self.flush()
        self._filling = True
        await self._until(lambda: is_whole(self.frames) or self._reading.done(), self._most_to_fill())

    async def ended(self) -> None:
        """Wait until the other end, which fills the answer up, is gone; what arrives meanwhile is dropped."""
        self._drop_arrivals()
        await asyncio.wait({self._reading}, timeout=self._most_to_fill())

    def _most_to_fill(self) -> float:
        """Seconds to the next power of two, and some slack."""
        return max(self._clock() - self._start, LEAST_FRAMES * self._tick) + SLACK_SECONDS

    async def _until(self, done: Callable[[], bool], seconds: float) -> None:
        """Wait until `done()` after some frame, for so many seconds at most, or until nothing can leave any more."""
        end = self._clock() + seconds
        while not done() and not self._sending.done() and (left := end - self._clock()) > 0:
            await self._after_tick(left)

    def _drop_arrivals(self) -> None:
        """Nobody reads any more: drop everything that arrives."""
        self._covering = True
        while not self._arrived.empty():
            self._arrived.get_nowait()

    async def stop_sending(self) -> None:
        """No frame leaves any more."""
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)

    async def close(self) -> None:
        """Send and read no more; the stream below stays as it is."""
        self._reading.cancel()
        await self.stop_sending()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _beat(self) -> None:
        while not (self._filling and is_whole(self.frames)):
            await asyncio.sleep(self._until_tick())
            message, self._waiting, self._leaving = self._waiting, None, True
            await self._send(Dummy() if message is None else message)
            self.frames, self._leaving = self.frames + 1, False
            ticked, self._ticked = self._ticked, asyncio.get_running_loop().create_future()
            ticked.set_result(None)

    def _until_tick(self) -> float:
        now = self._clock() - self._start
        return self._tick - now % self._tick

    async def _after_tick(self, timeout: float | None = None) -> None:
        """Until the next frame has left, nothing can leave any more, or so many seconds have passed."""
        waited_for = {self._ticked, self._sending}
        await asyncio.wait(waited_for, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    async def _read(self) -> Any:
        while not self._is_end(message := await self._receive()):
            if not isinstance(message, Dummy) and not self._covering:
                await self._arrived.put(message)
        return message
