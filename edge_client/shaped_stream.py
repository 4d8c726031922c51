"""The device's end of a shaped stream: frames of agreed sizes at agreed times (opensled/shaping.py)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from opensled.errors import Unsupported
from opensled.framed import Framed
from opensled.messages import ClientMessage, Open, Opened, ServerMessage
from opensled.shaping import OPENING_BYTES, Shaping
from opensled.ticked_stream import TickedStream


class Carrier(Protocol):
    """The stream below. See `remote.Stream`."""

    async def send(self, message: ClientMessage | Framed) -> None: ...

    async def receive(self) -> ServerMessage: ...

    async def close(self, linger: float = 0.0) -> None: ...


class ShapedStream:
    """A `remote.Stream` whose frames have the sizes that its `Open` asks for; from `Opened` on also the times."""

    def __init__(
        self, stream: Carrier, asked: Shaping, go_on: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        """`go_on` runs what remains to be sent when the reader has left."""
        self._stream, self._shaping, self._go_on = stream, asked, go_on
        self._ticked: TickedStream | None = None

    async def send(self, message: ClientMessage) -> None:
        if self._ticked is None:
            await self._send_framed(message)
        else:
            await self._ticked.send(message)

    async def _send_framed(self, message: ClientMessage) -> None:
        least = OPENING_BYTES if isinstance(message, Open) else self._shaping.frame_bytes
        await self._stream.send(Framed(message, least))

    async def receive(self) -> ServerMessage:
        if self._ticked is not None:
            return await self._ticked.receive()
        message = await self._stream.receive()
        if isinstance(message, Opened):
            self._begin(message.shaping)
        return message

    def _begin(self, agreed: Shaping | None) -> None:
        if agreed is None or not agreed.meets(self._shaping):
            raise Unsupported(
                "the server does not shape this stream as asked; update it, or drop --pad-frames", "shaping"
            )
        self._shaping = agreed
        if agreed.tick_ms:
            self._ticked = TickedStream(self._send_framed, self._stream.receive, agreed.tick_ms / 1000)

    async def close(self, linger: float = 0.0) -> None:
        """With `pad_answer` and a `linger` dummies leave until the server ends the stream, after this returns."""
        if self._ticked is None:
            await self._stream.close(linger)
        elif linger and self._shaping.pad_answer:
            self._go_on(self._fill(self._ticked, linger))
        else:
            await self._end(self._ticked, linger)

    async def _fill(self, ticked: TickedStream, linger: float) -> None:
        """Go on until the server has filled the answer up."""
        try:
            await ticked.ended()
        finally:
            await self._end(ticked, linger)

    async def _end(self, ticked: TickedStream, linger: float) -> None:
        try:
            if linger:
                await ticked.flush()
            await ticked.stop_sending()
            await self._stream.close(linger)
        finally:
            await ticked.close()
