"""One stream of messages, whatever carries it: open a session, feed it drafts, send its verdicts."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from opensled.errors import InvalidRequest, OpenSledError, ProtocolError
from opensled.messages import Cancel, ClientMessage, Draft, Failure, Open, ServerMessage, Verdict
from verify_server.outbox import Outbox
from verify_server.session import Session
from verify_server.sessions import Door

log = logging.getLogger(__name__)

# Seconds a stream stays open after its last message, unless the peer ends it first. A peer who is just sending a draft
# would else find it closed, and gRPC drops what he has not read yet: the last verdict, too.
FAREWELL = 1.0

Receive = Callable[[], Awaitable["ClientMessage | None"]]  # None: the peer is gone
Send = Callable[[ServerMessage], Awaitable[None]]


async def serve_stream(door: Door, tenant: str, receive: Receive, send: Send) -> None:
    """Serve one stream to its end. Errors go to this peer as a `Failure` and to nobody else."""
    try:
        first = await receive()
        if first is None:
            return
        if not isinstance(first, Open):
            raise ProtocolError("the first message of a stream must be Open")
        session, opened = await door.open(first, tenant)
    except Exception as error:
        failure = _failure(error)
        door.stats.refused[failure.code] += 1
        await send(failure)
        return
    outbox = session.attach(len(opened.prompt_ids) + len(first.committed))
    done = False
    try:
        await send(opened)
        done = await _converse(_read(session, receive, first), outbox, send, door.loop.stats.failures)
    finally:
        if session.outbox is outbox:  # else a newer stream has taken the session over
            (door.forget if done or session.failed else door.leave)(session)


async def _converse(read: Awaitable[bool], outbox: Outbox, send: Send, failures: Counter[str]) -> bool:
    """Read and write until the sequence or the peer ends; whether the peer is done with it (cancelled, or in error).

    Only the writer sends: two sends must never overlap.
    """
    reading, writing = asyncio.ensure_future(read), asyncio.ensure_future(_write(outbox, send))
    try:
        await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        error = reading.exception() if reading.done() else None
        if isinstance(error, Exception):
            failure = _failure(error)
            failures[failure.code] += 1
            outbox.put(failure)
            await writing
            return True
        if writing.done() and writing.result():
            await asyncio.wait({reading}, timeout=FAREWELL)
        return reading.done() and reading.exception() is None and reading.result()
    finally:
        reading.cancel()
        writing.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)


def _failure(error: Exception) -> Failure:
    if not isinstance(error, OpenSledError):
        log.error("a stream failed", exc_info=error)
    failure = Failure.of(error)
    log.info("a stream ends by an error", extra={"code": failure.code})
    return failure


async def _read(session: Session, receive: Receive, first: Open) -> bool:
    """Feed the session until the peer is gone (False) or cancels (True); a peer who does not read is not read."""
    outbox = session.outbox
    while True:
        if outbox.full:
            await outbox.room()
        message = await receive()
        if isinstance(message, Draft):
            session.submit(message)
        elif message is None:
            return False
        elif isinstance(message, Cancel):
            return True
        elif message != first:  # else a repeated frame
            raise InvalidRequest("the sequence is already open; a stream carries one", "open")


async def _write(outbox: Outbox, send: Send) -> bool:
    """Send until the sequence ends (True), or a newer stream takes the session over (False)."""
    while True:
        message = await outbox.get()
        if message is None:
            return False
        await send(message)
        if isinstance(message, Failure) or (isinstance(message, Verdict) and message.finish_reason):
            outbox.close()
            return True
