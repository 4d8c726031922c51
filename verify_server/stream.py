"""One stream of messages, whatever carries it: open a session, feed it drafts, send its verdicts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from opensled.errors import InvalidRequest, OpenSledError, ProtocolError
from opensled.messages import Cancel, ClientMessage, Draft, Failure, Open, ServerMessage, Verdict
from verify_server.session import Session
from verify_server.sessions import Door

log = logging.getLogger(__name__)

Receive = Callable[[], Awaitable["ClientMessage | None"]]  # None: the peer is gone
Send = Callable[[ServerMessage], Awaitable[None]]


async def serve_stream(door: Door, tenant: str, receive: Receive, send: Send) -> None:
    """Serve one stream to its end. Errors go to this peer as a `Failure` and to nobody else."""
    try:
        await _serve(door, tenant, receive, send)
    except OpenSledError as error:
        await send(Failure.of(error))
    except Exception as error:
        log.exception("a stream failed")
        await send(Failure.of(error))


async def _serve(door: Door, tenant: str, receive: Receive, send: Send) -> None:
    first = await receive()
    if first is None:
        return
    if not isinstance(first, Open):
        raise ProtocolError("the first message of a stream must be Open")
    session, opened = door.open(first, tenant)
    outbox = session.attach(len(opened.prompt_ids) + len(first.committed))
    try:
        await send(opened)
        await _both(_read(door, session, receive, first), _write(outbox, send))
    finally:
        if session.outbox is outbox:  # not superseded by a newer stream
            door.leave(session)


async def _read(door: Door, session: Session, receive: Receive, first: Open) -> None:
    while True:
        message = await receive()
        if message is None:
            return
        if message == first:  # a repeated frame
            continue
        if isinstance(message, Cancel):
            door.forget(session)
            return
        if not isinstance(message, Draft):
            raise InvalidRequest("the sequence is already open; a stream carries one", "open")
        session.submit(message)
        door.loop.wake()


async def _write(outbox: asyncio.Queue[ServerMessage | None], send: Send) -> None:
    """Send until the sequence ends, or a newer stream takes the session over (None)."""
    while True:
        message = await outbox.get()
        if message is None:
            return
        await send(message)
        if isinstance(message, Failure) or (isinstance(message, Verdict) and message.finish_reason):
            return


async def _both(*parts: Awaitable[None]) -> None:
    """Run until one ends; the other is cancelled, an error is raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
