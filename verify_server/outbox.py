"""What one reader is sent: a queue that never blocks who puts, and tells producers when to pause."""

from __future__ import annotations

import asyncio
from collections import deque

from opensled.messages import ServerMessage

# Messages a reader may lag behind; then nothing is decoded unasked for him and nothing more is read from him.
MAX_UNREAD = 64


class Outbox:
    """One task gets, another waits for room.

    `asyncio.Queue` and `Event` would allow for more tasks, at three times the cost.
    """

    def __init__(self) -> None:
        self._messages: deque[ServerMessage | None] = deque()
        self._news: asyncio.Future[None] | None = None  # the task that gets waits for it
        self._room: asyncio.Future[None] | None = None  # the task that must not go on waits for it
        self._congested = False  # from full until there is room again
        self._closed = False

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def full(self) -> bool:
        return len(self._messages) >= MAX_UNREAD

    def put(self, message: ServerMessage | None) -> None:
        """None ends the stream: a newer one took the session over."""
        if self._closed:
            return
        self._messages.append(message)
        if self.full:
            self._congested = True
        _settle(self._news)

    async def get(self) -> ServerMessage | None:
        while not self._messages:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        message = self._messages.popleft()
        if self._congested and not self.full:
            self._make_room()
        return message

    def drain(self) -> list[ServerMessage | None]:
        """All messages there are, at once."""
        messages = list(self._messages)
        self._messages.clear()
        if self._congested:
            self._make_room()
        return messages

    async def room(self) -> None:
        """Wait until the reader has caught up."""
        while self._congested:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def close(self) -> None:
        """The last message has been got: what is put from now on is dropped."""
        self._closed = True
        self._messages.clear()
        if self._congested:
            self._make_room()

    def _make_room(self) -> None:
        self._congested = False
        _settle(self._room)


def _settle(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
