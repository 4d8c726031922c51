"""The queue to the reader of a session: `put` never blocks, and a full queue tells producers to pause."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from opensled.core.messages import Prefill, ServerMessage

# Unread messages at which decoding without drafts and reading from this peer pause. Chosen.
MAX_UNREAD = 64


class Outbox:
    """One task gets, another one waits for space.

    `asyncio.Queue` and `Event` serve more tasks, at three times the cost.
    """

    def __init__(self) -> None:
        self._messages: deque[ServerMessage | None] = deque()
        self._news: asyncio.Future[None] | None = None  # that the getting task awaits
        self._space: asyncio.Future[None] | None = None  # that the reading task awaits
        self._congested = False  # from full until a message is got
        self._closed = False

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def full(self) -> bool:
        return len(self._messages) >= MAX_UNREAD

    def put(self, message: ServerMessage | None) -> None:
        """None ends the stream: a newer stream has taken the session over."""
        if self._closed:
            return
        self._messages.append(message)
        if len(self._messages) >= MAX_UNREAD:
            self._congested = True
        _settle(self._news)

    def put_prefill(self, message: Prefill) -> None:
        """Put a message that replaces an unread one: a reader needs only the latest, so these messages cannot fill the
        queue. Messages with tokens of the prompt all stay."""
        last = self._messages[-1] if self._messages else None
        if isinstance(last, Prefill) and not last.tokens:
            self._messages[-1] = message
        else:
            self.put(message)

    async def get(self) -> ServerMessage | None:
        while not self._messages:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        message = self._messages.popleft()
        if self._congested and not self.full:
            self._release()
        return message

    def drain(self) -> list[ServerMessage | None]:
        """All messages, at once."""
        messages = list(self._messages)
        self._messages.clear()
        if self._congested:
            self._release()
        return messages

    async def has_space(self) -> None:
        """Wait until the queue is no longer full."""
        while self._congested:
            self._space = asyncio.get_running_loop().create_future()
            await self._space

    def close(self) -> None:
        """The last message is sent: drop all others."""
        self._closed = True
        self._messages.clear()
        if self._congested:
            self._release()

    def _release(self) -> None:
        self._congested = False
        _settle(self._space)


@dataclass(eq=False, slots=True)
class Reader:
    """The reader of a session. Readers come one after another; between two of them the session has none."""

    outbox: Outbox = field(default_factory=Outbox)
    present: bool = False
    listens: bool = False  # its device sends nothing more, and reads on
    leaving: bool = False  # it goes on elsewhere

    def attach(self) -> None:
        """A new one takes over: the older stream ends."""
        self.outbox.put(None)
        self.outbox, self.present, self.listens = Outbox(), True, False


def _settle(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
