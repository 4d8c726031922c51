"""The server's end of a shaped stream: frames of agreed sizes at agreed times (opensled/shaping.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Any, NamedTuple

from opensled.framed import Framed
from opensled.messages import ClientMessage, Opened, ServerMessage, Verdict
from opensled.shaping import OPENING_BYTES, Shaping
from opensled.ticked_stream import TickedStream

# Tokens of verdicts that leave as one. Chosen: with ids of a large vocabulary they fit into one frame.
MAX_JOINED = 32

# Frames that may come before their tick: what a slow link or a busy machine held up. Chosen: seconds of a short tick.
BURST = 256


class Ending(Enum):
    """How a peer's side of a stream ends."""

    GONE = auto()
    CANCELLED = auto()  # in so many words
    HALF_CLOSED = auto()  # it sends nothing more, and reads on


Receive = Callable[[], Awaitable["ClientMessage | Ending | None"]]  # None = the peer is gone
Send = Callable[[ServerMessage], Awaitable[None]]


async def _nothing() -> None:
    pass


class Wire(NamedTuple):
    """Both directions of a stream."""

    receive: Receive
    send: Send
    # After the last message: until it has left, and dummies have filled the answer up
    finish: Callable[[], Awaitable[None]] = _nothing
    fills: bool = False  # `finish` takes long, because frames go on after the answer


@asynccontextmanager
async def shaped(receive: Receive, send: Any, shaping: Shaping | None, start: float) -> AsyncIterator[Wire]:
    """A stream of frames of agreed sizes, at multiples of the tick after `start` (seconds on the loop's clock)."""
    if shaping is None:
        yield Wire(receive, send)
        return

    frame_bytes = shaping.frame_bytes

    async def send_framed(message: ServerMessage) -> None:
        await send(Framed(message, OPENING_BYTES if isinstance(message, Opened) else frame_bytes))

    if not shaping.tick_ms:
        yield Wire(receive, send_framed)
        return
    tick = shaping.tick_ms / 1000
    ticked = TickedStream(send_framed, _at_most(receive, tick, start), tick, joined, start, _ends)
    try:
        finish = ticked.fill if shaping.pad_answer else ticked.flush
        yield Wire(ticked.receive, ticked.send, finish, shaping.pad_answer)
    finally:
        await ticked.close()


def _at_most(receive: Receive, tick: float, start: float) -> Receive:
    """`receive` no faster than one frame a tick: the dummies of a peer cost no more than it has agreed to send."""
    clock, frames = asyncio.get_running_loop().time, 0

    async def paced() -> ClientMessage | Ending | None:
        nonlocal frames
        frames += 1
        if (early := start + (frames - BURST) * tick - clock()) > 0:
            await asyncio.sleep(early)
        return await receive()

    return paced


def _ends(message: object) -> bool:
    return message is None or isinstance(message, Ending)


def joined(waiting: ServerMessage, message: ServerMessage) -> Verdict | None:
    """Two verdicts as one, if the second holds what the server decoded unasked after the first; else None.

    Else a server that decodes alone could commit no more than one token a tick.
    """
    if not (isinstance(waiting, Verdict) and isinstance(message, Verdict)):
        return None
    follows = message.base == waiting.base + len(waiting.tokens) and not message.answers
    short = len(waiting.tokens) + len(message.tokens) <= MAX_JOINED
    if not (follows and short) or waiting.finish_reason or waiting.logprobs or message.logprobs:
        return None
    if waiting.vetted or message.vetted or waiting.unverified or message.unverified:
        return None
    return waiting._replace(
        tokens=waiting.tokens + message.tokens,
        finish_reason=message.finish_reason,
        hint=waiting.hint if message.hint is None else message.hint,
    )
