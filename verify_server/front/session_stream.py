"""One stream of messages, independent of the transport: open a session, pass it drafts, send its verdicts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from enum import Enum, auto

from opensled.core.errors import InvalidRequest, OpenSledError, ProtocolError
from opensled.core.messages import Cancel, ClientMessage, Draft, Failure, Moved, Open, ServerMessage, Verdict
from opensled.wire import codec
from verify_server.access.clients import StreamAccount
from verify_server.admission.session_manager import SessionManager
from verify_server.round.loop import VerifyLoop
from verify_server.round.outbox import MAX_UNREAD, Outbox
from verify_server.round.session import Session

log = logging.getLogger(__name__)

# Seconds for which a stream stays open after its last message, unless the peer ends it first. Without them gRPC fails
# the draft that a peer is sending, and drops the last verdict unread. Chosen: longer than a slow link's round trip.
CLOSE_SECONDS = 1.0

# A client gives up before its deadline as the server computes it: gRPC rounds deadlines up on their way. At most so
# many seconds, and this share of the time.
EARLY, EARLY_SHARE = 0.05, 0.02


class Ending(Enum):
    """How a peer's side of a stream ends."""

    GONE = auto()
    CANCELLED = auto()  # in so many words
    HALF_CLOSED = auto()  # it sends nothing more, and reads on


Receive = Callable[[], Awaitable[ClientMessage | Ending | None]]  # None = the peer is gone
Send = Callable[[ServerMessage], Awaitable[None]]


class Deadline:
    """When a stream's client stops waiting for it."""

    def __init__(self, seconds: float | None) -> None:
        """`seconds` from now; None = never."""
        self._clock, self._early = asyncio.get_running_loop().time, EARLY + EARLY_SHARE * (seconds or 0.0)
        self.at = None if seconds is None else self._clock() + seconds

    @property
    def passed(self) -> bool:
        """Whether the client has given up."""
        return self.at is not None and self._clock() >= self.at - self._early


async def serve_stream(
    manager: SessionManager,
    tenant: str,
    receive: Receive,
    send: Send,
    seconds: float | None,
    account: StreamAccount,
) -> None:
    """Serve one stream to its end, or for `seconds` if it has a deadline; then forget its session.

    Errors go to this peer as a `Failure`; raises only TimeoutError, at the deadline.
    """
    deadline = Deadline(seconds)
    async with asyncio.timeout_at(deadline.at):
        try:
            first = await receive()
        except Exception as error:
            await send(_refusal(manager, error))
            return
        if first is None or isinstance(first, Ending):
            return
        arrived = time.monotonic()
        session, told = await _admit(manager, tenant, first, account)
        if session is None:
            for message in told:
                await send(message)
            _time_refusal(manager, told, arrived)
            return
        outbox, cancelled = session.outbox, False
        try:
            await send(*told)
            cancelled = await _converse(
                _read(manager.loop, session, receive, first, account.idle),
                _write(manager.loop, outbox, send),
                session,
            )
        finally:
            if session.outbox is outbox:  # else a newer stream has taken the session over
                if cancelled or session.failed or session.reader.leaving or deadline.passed:
                    manager.forget(session)
                else:
                    manager.leave(session)


async def answer(
    manager: SessionManager, tenant: str, opening: Open, account: StreamAccount
) -> AsyncGenerator[ServerMessage, None]:
    """The messages of a sequence without drafts; it is forgotten before the last one, or when this is closed."""
    arrived = time.monotonic()
    session, told = await _admit(manager, tenant, opening, account)
    if session is None:
        _time_refusal(manager, told, arrived)
        for message in told:
            yield message
        return
    outbox, last = session.outbox, None
    try:
        manager.loop.listen(session)
        yield told[0]
        while (last := await _next(manager.loop, outbox)) is not None and not _is_last(last):
            yield _as_sent(last)
    finally:
        if session.outbox is outbox:  # else a newer reader has taken the session over
            manager.forget(session)
    if last is not None:
        yield _as_sent(last)


def _as_sent(message: ServerMessage) -> ServerMessage:
    """With log-probabilities as a device has them: in the digits of the wire."""
    told = message.logprobs if isinstance(message, Verdict) else getattr(message, "tokens", ())
    return codec.server_message(codec.server_bytes(message)) if told else message


async def _admit(
    manager: SessionManager, tenant: str, first: ClientMessage, account: StreamAccount
) -> tuple[Session | None, Sequence[ServerMessage]]:
    """The session that the first message of a stream opens, and the answer to it; without a session the messages are
    all of the stream: a refusal, or an answer of no tokens."""
    try:
        if not isinstance(first, Open):
            raise ProtocolError("the first message of a stream must be Open")
        if not first.params.max_tokens and first.prompt_logprobs is None:
            opened = await manager.count(first, tenant, account.charge)
            return None, (opened, Verdict(len(opened.prompt_ids), (), finish_reason="length"))
        session, opened = await manager.open(first, tenant, account.charge)
    except Exception as error:
        return None, (_refusal(manager, error),)
    manager.loop.attach(session, len(opened.prompt_ids) + len(first.committed))
    return session, (opened,)


def _refusal(manager: SessionManager, error: Exception) -> Failure | Moved:
    if manager.hands_over:
        return Moved()
    failure = failure_of(error)
    manager.stats.refused[failure.code] += 1  # before its peer hears of it
    return failure


def _time_refusal(manager: SessionManager, told: Sequence[ServerMessage], arrived: float) -> None:
    """Observe how long a refusal took that leaves now."""
    if isinstance(told[-1], Failure):
        manager.stats.refusals.add(time.monotonic() - arrived)


async def _converse(read: Awaitable[Ending], write: Awaitable[bool], session: Session) -> bool:
    """Read and write until the sequence or the peer ends; returns True if the peer cancelled it.

    Only the writer sends: two sends must not overlap. After an error the session has failed, whether or not its peer
    stays to read of it.
    """
    outbox, failures = session.outbox, session.stats.failures
    reading, writing = asyncio.ensure_future(read), asyncio.ensure_future(write)
    try:
        await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        error = reading.exception() if reading.done() else None
        if isinstance(error, Exception):
            failure = failure_of(error)
            failures[failure.code] += 1
            outbox.put(failure)
            if session.outbox is outbox:  # else a newer stream has taken it over
                session.failed = True
                session.detach()
            await writing
            return False
        if _has_ended(reading, Ending.HALF_CLOSED):
            await asyncio.wait({writing})
        if writing.done() and writing.result():
            await asyncio.wait({reading}, timeout=CLOSE_SECONDS)
        return _has_ended(reading, Ending.CANCELLED)
    finally:
        reading.cancel()
        writing.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)


def _has_ended(reading: asyncio.Future[Ending], how: Ending) -> bool:
    return reading.done() and reading.exception() is None and reading.result() is how


def failure_of(error: Exception) -> Failure:
    """What the peer learns of an error; the log has the rest."""
    if not isinstance(error, OpenSledError):
        log.error("a stream failed", exc_info=error)
    failure = Failure.of(error)
    log.info("a stream ends by an error", extra={"code": failure.code})
    return failure


async def _read(
    loop: VerifyLoop,
    session: Session,
    receive: Receive,
    first: ClientMessage,
    idle: Callable[[], Awaitable[None]],
) -> Ending:
    """Pass drafts to the session until the peer ends its side.

    Reading pauses while the peer reads too slowly, and while it sends too much that gains nothing.
    """
    outbox = session.outbox
    while True:
        if outbox.full:
            await outbox.has_space()
        message = await receive()
        if isinstance(message, Draft):
            if not loop.submit(session, message):
                await idle()
        elif message is None:
            return Ending.GONE
        elif isinstance(message, Ending):
            loop.listen(session)
            return message
        elif isinstance(message, Cancel):
            return Ending.CANCELLED
        elif message == first:  # a repeated frame
            await idle()
        else:
            raise InvalidRequest("the sequence is already open; a stream carries one", "open")


async def _write(loop: VerifyLoop, outbox: Outbox, send: Send) -> bool:
    """Send until the sequence ends here (True), or a newer stream takes the session over (False)."""
    while (message := await _next(loop, outbox)) is not None:
        await send(message)
        if _is_last(message):
            outbox.close()
            return True
    return False


async def _next(loop: VerifyLoop, outbox: Outbox) -> ServerMessage | None:
    message = await outbox.get()
    if len(outbox) == MAX_UNREAD - 1:  # until now it was full, and its session paused
        loop.wake()
    return message


def _is_last(message: ServerMessage) -> bool:
    return isinstance(message, Failure | Moved) or (
        isinstance(message, Verdict) and bool(message.finish_reason)
    )
