"""What one reader is sent: a queue that never blocks who puts, and tells producers when to pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from opensled.messages import ServerMessage

# Messages a reader may lag behind; then nothing is decoded unasked for him and nothing more is read from him.
MAX_UNREAD = 64


class Outbox:
    """`on_room` is called when the reader has caught up after the outbox was full."""

    def __init__(self, on_room: Callable[[], None] = lambda: None) -> None:
        self._queue: asyncio.Queue[ServerMessage | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._on_room = on_room

    @property
    def full(self) -> bool:
        return self._queue.qsize() >= MAX_UNREAD

    def put(self, message: ServerMessage | None) -> None:
        """None ends the stream: a newer one took the session over."""
        self._queue.put_nowait(message)
        if self.full:
            self._room.clear()

    async def get(self) -> ServerMessage | None:
        message = await self._queue.get()
        self._made_room()
        return message

    def get_nowait(self) -> ServerMessage | None:
        """For callers who know that there is a message."""
        message = self._queue.get_nowait()
        self._made_room()
        return message

    async def room(self) -> None:
        """Wait until the reader has caught up."""
        await self._room.wait()

    def _made_room(self) -> None:
        if not self._room.is_set() and not self.full:
            self._room.set()
            self._on_room()
