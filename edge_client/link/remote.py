"""A verifier behind a link that may break or lead elsewhere: reopens the sequence with what the device holds.

`ReopeningPace` bounds how often: a server that takes a sequence and drops it must not keep its device busy.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from edge_client.link.moves import MAX_MOVES
from edge_client.link.sent_images import SentImages
from opensled.core.answer import PromptTokens
from opensled.core.errors import (
    MissingImage,
    OpenSledError,
    Overloaded,
    ProtocolError,
    Unreachable,
)
from opensled.core.images import Image
from opensled.core.messages import (
    Cancel,
    ClientMessage,
    Draft,
    Failure,
    Limits,
    Moved,
    Open,
    Opened,
    Prefill,
    ServerMessage,
    Verdict,
)
from opensled.core.protocol import Truth, likeliest_path
from opensled.core.turns import Turn

log = logging.getLogger(__name__)

MAX_FRUITLESS = 32  # times in a row that a sequence is reopened without a new token
Message = TypeVar("Message")


class Stream(Protocol):
    """One connection of one sequence. `send` and `receive` raise Unreachable when it is lost."""

    async def send(self, message: ClientMessage) -> None: ...

    async def receive(self) -> ServerMessage: ...

    async def close(self, linger: float = 0.0) -> None:
        """End it; `linger` is how many seconds the other end is given to hear what was sent."""


class Connect(Protocol):
    """Starts a stream. `address`: HOST:PORT that a server named, "" = the server this device asks first."""

    def __call__(self, address: str = "") -> Stream: ...


FAREWELL = 1.0  # seconds for the server to hear that a sequence is cancelled
HOME = Moved()  # where the device asks first


@dataclass(frozen=True)
class RetryPolicy:
    """How a lost server is waited for. All in seconds."""

    silence: float = 30.0  # without a word for so long, the stream is taken for dead
    first_retry: float = 0.05  # between the first try, which comes at once, and the second
    slowest_retry: float = 2.0  # delays double up to this, unless the server asks for more
    first_open: float = 1.5  # of trying in vain to open a sequence, after which its reader is told
    give_up: float = 120.0  # of trying in vain to reopen one


class RemoteSession:
    """One sequence on a server. Its history lives here; the server's memory of it is only a cache."""

    truth: Truth
    noise_key: bytes
    draft_probs: bool
    limits: Limits
    turn: Turn
    rule: str = ""  # of the server, with all its options; "" = no server has opened it
    coarse_tools: tuple[str, ...] = ()  # see `Opened`; told once

    def __init__(
        self,
        connect: Connect,
        request: Open,
        patience: RetryPolicy = RetryPolicy(),
        fallback: str = "",
        sent_images: SentImages | None = None,
    ) -> None:
        """`fallback`: HOST:PORT to try where the server that this device asks first does not answer; "" = none.
        `sent_images`: by this device, in all its sequences."""
        self._sent_images = sent_images or SentImages()
        self._fallback = Moved(fallback)
        self._connect, self._request, self._patience = connect, request, patience
        self._stream: Stream | None = None
        self._pace = ReopeningPace(patience.first_retry, patience.slowest_retry)
        self.reopened = 0  # how often the stream was lost, or led elsewhere, and found again
        self.cached = 0  # positions of the prompt whose KV was found, where the first token comes from
        # Called with each one; tokens come once
        self.hear_prefill: Callable[[Prefill], None] = lambda _: None
        self._prefill: Prefill | None = None  # the latest of this stream
        self._prompt = PromptTokens()

    @property
    def away(self) -> bool:
        """Whether no server has this sequence, as long as one is looked for."""
        return self._stream is None

    @property
    def prefill(self) -> Prefill | None:
        """How far the server has read the text; None = it does not say, or is done."""
        latest = self._prefill
        return latest if latest and self.truth.confirmed <= latest.length else None

    async def open(self) -> None:
        """Open the sequence for the first time."""
        opened = await self._persist(HOME, self._patience.first_open)
        self.truth = Truth(opened.prompt_ids, self._request.committed)
        self.noise_key = opened.noise_key
        self.limits, self.turn, self.draft_probs = (
            opened.limits,
            Turn(opened.hint, opened.why),
            opened.draft_probs,
        )
        self.rule, self.coarse_tools = opened.rule, opened.coarse_tools
        self._request = replace(self._request, prompt=opened.prompt_ids, noise_key=opened.noise_key)

    async def submit(self, draft: Draft) -> None:
        draft = _shorten(draft, self.limits)
        self.turn.draft(draft)
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
                await self._handle_error(message.error())
            if isinstance(message, Moved):
                await self._reopen(message)
            if isinstance(message, Prefill):
                await self._read(message)
            if isinstance(message, Verdict):  # else an Opened said twice
                if message.base <= self.truth.confirmed and self._knows_prompt(message):
                    return self._within_bounds(message)
                await self._reopen()  # what lies before this one will not come any more

    def _knows_prompt(self, verdict: Verdict) -> bool:
        """Whether all that was asked of the prompt's tokens has come, as it does before a verdict that is final."""
        if self._request.prompt_logprobs is None or self._prompt.known >= self.truth.prompt_length:
            return True
        final = verdict.base + len(verdict.tokens) - verdict.vetted
        return final <= self.truth.prompt_length and not verdict.finish_reason

    async def _read(self, message: Prefill) -> None:
        """The server has read more of the text; what it finds of an answer under way does not count."""
        prefill = self._prompt.news(message)
        if prefill is None:
            await self._reopen()
            return
        self._prefill = prefill
        if not self.truth.generated:
            self.cached = prefill.cached
        self.hear_prefill(prefill)

    async def _handle_error(self, error: OpenSledError) -> None:
        """The server ends the sequence. A relay that cannot reach the target may not be the only way there."""
        if not (isinstance(error, Unreachable) and self._fallback.address):
            raise error
        await self._reopen(self._fallback)

    def _within_bounds(self, verdict: Verdict) -> Verdict:
        """`verdict`, unless it goes beyond the `max_tokens` of the request, or has words that no target verifies and
        the request does not take: then the device ends the answer itself."""
        if verdict.unverified and not self._request.takes_unverified:
            raise ProtocolError(
                "the relay answers without its target, and this device does not accept unverified text; to accept "
                "it: --offline local-only"
            )
        most, end = self._request.params.max_tokens, verdict.base + len(verdict.tokens)
        if end > self.truth.prompt_length + most:
            raise ProtocolError(
                f"the server sent more than the {most} tokens that this answer may have (--max-tokens); the rest is "
                "dropped"
            )
        return verdict

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        if not self.truth.finish_reason:
            with contextlib.suppress(Unreachable):  # lost anyway: the server forgets the session by itself
                await stream.send(Cancel())
        await stream.close(FAREWELL)

    async def _receive(self) -> ServerMessage:
        if self._stream is None:
            raise Unreachable("the stream is lost")
        return await limit_time(self._patience.silence, self._stream.receive())

    async def _reopen(self, moved: Moved = HOME) -> None:
        """Go on where the truth stands, on whatever server answers; the unanswered draft goes along."""
        if self._stream is not None:
            await self._stream.close()
            self._stream = None
        self._prefill = None
        if not self.truth.generated:
            self.cached = 0  # another server may compute all of the prompt
        pause = self._pace.pause(asyncio.get_running_loop().time(), len(self.truth))
        if pause:
            await asyncio.sleep(pause)
        self.truth.forget_vetted()  # who answers now may never have heard of it
        self._request = _going_on(self._request, self.truth.generated)
        opened = await self._persist(moved, self._patience.give_up)
        self.limits = opened.limits  # another server than before may take less
        self.reopened += 1
        self.draft_probs = opened.draft_probs
        draft = self.turn.reopen(opened.hint, opened.why)
        if draft is not None and draft.block.base <= len(self.truth):
            await self.submit(draft)

    async def _persist(self, moved: Moved, seconds: float) -> Opened:
        """Open a stream, however often it takes: first where `moved` says, then where the device asks first.

        Raises what is no matter of time, and after `seconds` also that no server answers, or has room.
        """
        now = asyncio.get_running_loop().time
        first = delay = 0.0 if moved.address else self._patience.first_retry
        deadline = now() + seconds
        while True:
            try:
                return await self._reach(moved)
            except (Unreachable, Overloaded) as error:
                asked = error.retry_after if isinstance(error, Overloaded) else 0.0
                # Spread, so that not all that it turned away come back at once
                pause = max(delay, asked * random.uniform(1.0, 1.25))
                if now() + pause > deadline:
                    raise
                if self._request.noise_key and delay == first:
                    log.warning("server lost during an answer; retrying for %g s", seconds)
                log.debug("cannot open the sequence: %s; again in %.2f s", error, pause)
            await asyncio.sleep(pause)
            moved, delay = HOME, min(max(2 * delay, self._patience.first_retry), self._patience.slowest_retry)

    async def _reach(self, moved: Moved) -> Opened:
        """Open a stream where `moved` says, or where no server answers there, at the fallback."""
        try:
            return await self._follow(moved)
        except Unreachable as error:
            if not self._fallback.address or moved is self._fallback:
                raise
            log.debug("cannot open the sequence: %s; trying %s", error, self._fallback.address)
        return await self._follow(self._fallback)

    async def _follow(self, moved: Moved) -> Opened:
        """Open a stream where `moved` says, or where the server there says; the address may be gone by then."""
        for _ in range(1 + MAX_MOVES):
            if moved.resume_token:
                self._request = replace(self._request, resume_token=moved.resume_token)
            answer = await self._open_stream(moved.address)
            if isinstance(answer, Opened):
                self._request = replace(self._request, resume_token=answer.resume_token)
                return answer
            moved = answer
        raise Unreachable(f"{MAX_MOVES} servers in a row redirected this device; see the log of the gateway")

    async def _open_stream(self, address: str) -> Opened | Moved:
        """Open a stream; files of pictures go along where the server needs them."""
        images = self._request.images
        try:
            answer = await self._ask(address, self._sent_images.replace_known(images))
        except MissingImage:
            self._sent_images.forget(images)
            answer = await self._ask(address, images)
        if isinstance(answer, Opened):
            self._sent_images.add(images)
        return answer

    async def _ask(self, address: str, images: tuple[Image, ...]) -> Opened | Moved:
        stream = self._connect(address) if address else self._connect()
        try:
            await stream.send(replace(self._request, images=images))
            answer = await limit_time(self._patience.silence, _first_answer(stream))
        except BaseException:
            await stream.close()
            raise
        if isinstance(answer, Moved):
            await stream.close()
        else:
            self._stream = stream
        return answer


def _going_on(request: Open, generated: tuple[int, ...]) -> Open:
    """The request of a sequence that has `generated` tokens by now; all that its prompt says came before them."""
    wanted = None if generated else request.prompt_logprobs
    return replace(request, committed=generated, prompt_logprobs=wanted)


def _shorten(draft: Draft, limits: Limits) -> Draft:
    """As much of a draft as this server takes; another one may have taken more, or trees."""
    block = draft.block if limits.max_tree else likeliest_path(draft.block)
    return replace(draft, block=block.first(limits.max_tree if block.parents else limits.max_draft))


async def limit_time(seconds: float, work: Coroutine[Any, Any, Message]) -> Message:
    """The result of `work`; Unreachable if late. `asyncio.wait_for` swallows cancellations before Python 3.12."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        raise Unreachable(f"the server sent nothing for {seconds:g} s")
    finally:
        task.cancel()


async def _first_answer(stream: Stream) -> Opened | Moved:
    while True:
        message = await stream.receive()
        if isinstance(message, Failure):
            raise message.error()
        if isinstance(message, (Opened, Moved)):
            return message


class ReopeningPace:
    """The first time is free. Others in quick succession wait: `first` seconds, doubling up to `slowest`.

    Each `slowest` seconds that pass forgive one of them.
    """

    def __init__(self, first: float, slowest: float) -> None:
        self._first, self._slowest = first, slowest
        self._recent = 0.0  # reopenings that are not forgiven yet
        self._last = 0.0  # time of the latest
        self._length = self._fruitless = 0

    def pause(self, now: float, length: int) -> float:
        """Seconds to wait before one more at the time `now`, with `length` tokens known.

        Raises Unreachable after MAX_FRUITLESS in a row without a new token.
        """
        self._fruitless = 0 if length > self._length else self._fruitless + 1
        self._length = length
        if self._fruitless > MAX_FRUITLESS:
            raise Unreachable(
                f"the server accepted this answer {MAX_FRUITLESS} times, and each time ended it without a token; see "
                "the server's log, or choose another --server"
            )
        return self._backoff(now)

    def _backoff(self, now: float) -> float:
        before = max(0.0, self._recent - (now - self._last) / self._slowest)
        self._recent, self._last = before + 1, now
        return min(self._first * 2 ** (before - 1), self._slowest) if before >= 1 else 0.0
