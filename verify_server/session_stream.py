"""One stream of messages, whatever carries it: open a session, feed it drafts, send its verdicts."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from opensled.errors import InvalidRequest, OpenSledError, ProtocolError
from opensled.messages import Cancel, ClientMessage, Draft, Failure, Moved, Open, ServerMessage, Verdict
from verify_server.loop import VerifyLoop
from verify_server.outbox import MAX_UNREAD, Outbox
from verify_server.session import Session
from verify_server.session_manager import SessionManager

log = logging.getLogger(__name__)

# Seconds a stream stays open after its last message, unless the peer ends it first. A peer who is just sending a draft
# would else find it closed, and gRPC drops what he has not read yet: the last verdict, too.
FAREWELL = 1.0

# A client gives up so many seconds before its deadline as the server knows it, at most, and this share of its time.
EARLY, EARLY_SHARE = 0.05, 0.02

Receive = Callable[[], Awaitable["ClientMessage | None"]]  # None: the peer is gone
Send = Callable[[ServerMessage], Awaitable[None]]


class Deadline:
    """When a stream's client stops waiting for it."""

    def __init__(self, seconds: float | None) -> None:
        """`seconds` from now; None = never."""
        self._clock, self._seconds = asyncio.get_running_loop().time, seconds
        self.at = None if seconds is None else self._clock() + seconds

    @property
    def passed(self) -> bool:
        """Whether the client has given up: a little before, for on its way a deadline is rounded up."""
        if self.at is None or self._seconds is None:
            return False
        return self._clock() >= self.at - EARLY - EARLY_SHARE * self._seconds


async def serve_stream(
    manager: SessionManager, tenant: str, receive: Receive, send: Send, seconds: float | None = None
) -> None:
    """Serve one stream to its end, in so many `seconds` if it has a deadline; then its session is forgotten.

    Errors go to this peer as a `Failure` and to nobody else; only TimeoutError is raised, at the deadline.
    """
    deadline = Deadline(seconds)
    async with asyncio.timeout_at(deadline.at):
        await _serve(manager, tenant, receive, send, deadline)


async def _serve(
    manager: SessionManager, tenant: str, receive: Receive, send: Send, deadline: Deadline
) -> None:
    try:
        first = await receive()
        if first is None:
            return
        if not isinstance(first, Open):
            raise ProtocolError("the first message of a stream must be Open")
        session, opened = await manager.open(first, tenant)
    except Exception as error:
        if manager.hands_over:
            await send(Moved())
            return
        failure = failure_of(error)
        manager.stats.refused[failure.code] += 1
        await send(failure)
        return
    outbox = manager.loop.attach(session, len(opened.prompt_ids) + len(first.committed))
    done = False
    try:
        await send(opened)
        done = await _converse(
            _read(manager.loop, session, receive, first),
            _write(manager.loop, outbox, send),
            outbox,
            manager.loop.stats.failures,
        )
    finally:
        if session.outbox is outbox:  # else a newer stream has taken the session over
            over = done or session.failed or session.leaving or deadline.passed
            (manager.forget if over else manager.leave)(session)


async def _converse(
    read: Awaitable[bool], write: Awaitable[bool], outbox: Outbox, failures: Counter[str]
) -> bool:
    """Read and write until the sequence or the peer ends; whether the peer is done with it (cancelled, or in error).

    Only the writer sends: two sends must never overlap.
    """
    reading, writing = asyncio.ensure_future(read), asyncio.ensure_future(write)
    try:
        await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        error = reading.exception() if reading.done() else None
        if isinstance(error, Exception):
            failure = failure_of(error)
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


def failure_of(error: Exception) -> Failure:
    """What the peer is told of it; the log has the rest."""
    if not isinstance(error, OpenSledError):
        log.error("a stream failed", exc_info=error)
    failure = Failure.of(error)
    log.info("a stream ends by an error", extra={"code": failure.code})
    return failure


async def _read(loop: VerifyLoop, session: Session, receive: Receive, first: Open) -> bool:
    """Feed the session until the peer is gone (False) or cancels (True); a peer that does not read is not read."""
    outbox = session.outbox
    while True:
        if outbox.full:
            await outbox.room()
        message = await receive()
        if isinstance(message, Draft):
            loop.submit(session, message)
        elif message is None:
            return False
        elif isinstance(message, Cancel):
            return True
        elif message != first:  # else a repeated frame
            raise InvalidRequest("the sequence is already open; a stream carries one", "open")


async def _write(loop: VerifyLoop, outbox: Outbox, send: Send) -> bool:
    """Send until the sequence ends here (True), or a newer stream takes the session over (False)."""
    while True:
        message = await outbox.get()
        if len(outbox) == MAX_UNREAD - 1:  # until now it was full, and its session paused
            loop.wake()
        if message is None:
            return False
        await send(message)
        if isinstance(message, Failure | Moved) or (isinstance(message, Verdict) and message.finish_reason):
            outbox.close()
            return True
