"""A verifier behind a link that may break: reopens the sequence with what the device holds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from opensled.errors import OpenSledError, Overloaded, Unreachable
from opensled.messages import (
    Cancel,
    ClientMessage,
    Draft,
    Failure,
    Limits,
    Open,
    Opened,
    ServerMessage,
    Verdict,
)
from opensled.protocol import Truth

log = logging.getLogger(__name__)

Message = TypeVar("Message")


class Stream(Protocol):
    """One connection of one sequence. `send` and `receive` raise Unreachable when it is lost."""

    async def send(self, message: ClientMessage) -> None: ...

    async def receive(self) -> ServerMessage: ...

    async def close(self, linger: float = 0.0) -> None:
        """End it; `linger` is how many seconds the other end is given to hear what was sent."""


Connect = Callable[[], Stream]


@dataclass(frozen=True)
class Patience:
    """How a lost server is waited for. All in seconds."""

    silence: float = 30.0  # without a word for so long, the stream is taken for dead
    first_retry: float = 0.05
    slowest_retry: float = 2.0  # delays double up to this
    farewell: float = 1.0  # for the server to hear that a sequence is cancelled
    first_open: float = 1.5  # of trying in vain to open a sequence, after which its reader is told
    give_up: float = 120.0  # of trying in vain to reopen one


class RemoteSession:
    """One sequence on a server. Its history lives here; the server's memory of it is only a cache."""

    truth: Truth
    noise_key: bytes
    rule: str
    limits: Limits

    def __init__(self, connect: Connect, request: Open, patience: Patience = Patience()) -> None:
        self._connect, self._request, self._patience = connect, request, patience
        self._stream: Stream | None = None
        self._unanswered: Draft | None = None
        self.rule = request.rule
        self.reopened = 0  # how often the stream was lost and found again

    async def open(self) -> None:
        """Open the sequence for the first time."""
        opened = await self._persist(self._request, (Unreachable,), self._patience.first_open)
        self.truth = Truth(opened.prompt_ids, self._request.committed)
        self.noise_key, self.limits = opened.noise_key, opened.limits
        self._request = replace(self._request, prompt=opened.prompt_ids, noise_key=opened.noise_key)

    async def submit(self, draft: Draft) -> None:
        draft = _shortened(draft, self.limits.max_draft)
        self._unanswered = draft
        try:
            if self._stream is not None:
                await self._stream.send(draft)
        except Unreachable:
            log.debug("draft %d meets a lost stream; it is sent again on the next", draft.counter)

    async def next_verdict(self) -> Verdict:
        while True:
            try:
                message = await self._receive()
            except Unreachable:
                await self._reopen()
                continue
            if isinstance(message, Failure):
                raise message.error()
            # What else may come: an Opened said twice, or a verdict with a gap before it, which silence mends.
            if isinstance(message, Verdict) and message.base <= len(self.truth):
                if self._unanswered is not None and message.answers >= self._unanswered.counter:
                    self._unanswered = None
                return message

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        if not self.truth.finish_reason:
            with contextlib.suppress(Unreachable):  # lost anyway: the server forgets the session by itself
                await stream.send(Cancel())
        await stream.close(self._patience.farewell)

    async def _receive(self) -> ServerMessage:
        if self._stream is None:
            raise Unreachable("the stream is lost")
        return await _within(self._patience.silence, self._stream.receive())

    async def _reopen(self) -> None:
        """Go on where the truth stands, on whatever server answers; the unanswered draft goes along."""
        if self._stream is not None:
            await self._stream.close()
            self._stream = None
        request = replace(self._request, committed=self.truth.generated, resume_token=self._resume_token)
        opened = await self._persist(request, (Unreachable, Overloaded), self._patience.give_up)
        self.limits = opened.limits  # another server may take less
        self.reopened += 1
        if self._unanswered is not None:
            await self.submit(self._unanswered)

    async def _persist(
        self, request: Open, passing: tuple[type[OpenSledError], ...], seconds: float
    ) -> Opened:
        """Open a stream, however often it takes: errors that are `passing` are met with another try."""
        deadline = asyncio.get_running_loop().time() + seconds
        delay = self._patience.first_retry
        while True:
            try:
                return await self._open_stream(request)
            except passing as error:
                if asyncio.get_running_loop().time() + delay > deadline:
                    raise
                if request.resume_token and delay == self._patience.first_retry:
                    log.warning("server lost in mid-answer; trying again for %g s", seconds)
                log.debug("cannot open the sequence: %s; again in %.2f s", error, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._patience.slowest_retry)

    async def _open_stream(self, request: Open) -> Opened:
        stream = self._connect()
        try:
            await stream.send(request)
            opened = await _within(self._patience.silence, _first_opened(stream))
        except BaseException:
            await stream.close()
            raise
        self._stream, self._resume_token = stream, opened.resume_token
        return opened


def _shortened(draft: Draft, length: int) -> Draft:
    block = draft.block
    return replace(draft, block=replace(block, tokens=block.tokens[:length]))


async def _within(seconds: float, work: Coroutine[Any, Any, Message]) -> Message:
    """The result of `work`, or Unreachable when it takes longer.

    Not `asyncio.wait_for`: before Python 3.12 it swallows a cancellation that comes together with the result.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        raise Unreachable(f"no word from the server for {seconds:g} s")
    finally:
        task.cancel()


async def _first_opened(stream: Stream) -> Opened:
    while True:
        message = await stream.receive()
        if isinstance(message, Failure):
            raise message.error()
        if isinstance(message, Opened):
            return message
