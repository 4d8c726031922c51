"""Answers on their way to the client: server-sent events, and the end of the work when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from http_api.backend import Answer
from http_api.content_parts import without_earlier_images
from http_api.exchange import AnswerRecord, current
from http_api.failures import code_of, error_object
from http_api.left_out import name_coarse
from http_api.responses import LOCAL_HEADER
from http_api.waiting_room import RETRY_SECONDS, WaitingRoom
from opensled.core.answer import LOCAL_ONLY, Chunk, Stats, Task, first_unverified
from opensled.core.errors import EngineError, InvalidRequest, OpenSledError, Overloaded, Unreachable

log = logging.getLogger(__name__)
T = TypeVar("T")
Arrivals = asyncio.Queue[tuple[int, Chunk | Exception]]
Cut = Callable[[], Chunk]
NOT_BEGUN = Chunk("", (), "length", Stats(0, 0))  # an answer whose siblings have begun, where all end


class Told(Protocol):
    """What a client is told of the answers to its request: in payloads, one after the other, or in one object."""

    headers: dict[str, str]
    end: tuple[bytes, ...]  # behind the payloads of a stream without an error

    def opening(self) -> list[dict[str, Any]]: ...

    def push(self, index: int, chunk: Chunk, /) -> list[dict[str, Any]]: ...

    def closing(self) -> list[dict[str, Any]]: ...

    def failure(self, error: dict[str, Any], /) -> list[dict[str, Any]]: ...

    def event(self, payload: dict[str, Any], /) -> bytes: ...

    def heartbeat(self, status: str, /) -> bytes: ...

    def whole(self) -> dict[str, Any]: ...


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If the client leaves first, cancels `work` and raises ClientDisconnect."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_departure(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def merge(
    answer: Answer,
    tasks: Sequence[Task],
    spelled: Callable[[Exception], Exception],
    ending: asyncio.Event,
    waiting: WaitingRoom,
) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Chunks of the answers to `tasks` in the order of arrival, each with the number of its answer.

    They are answered at the same time, as far as there are places; without any, they wait in `waiting`. The first error
    ends all answers and is raised as `spelled` returns it. `ending` ends them with what they have, or with Unreachable
    if none of them has begun; closing the generator ends them, too.
    """
    arrived: Arrivals = asyncio.Queue()
    room, places = asyncio.Semaphore(len(tasks)), _Places(len(tasks))
    pumps = [
        asyncio.ensure_future(_pump(answer, task, partial(_arrive, arrived, room, number), places, waiting))
        for number, task in enumerate(tasks)
    ]
    pumps.append(asyncio.ensure_future(_interrupt(ending, arrived)))
    records = {number: AnswerRecord(current()) for number in range(len(tasks))}
    under_way: dict[int, Cut | None] = dict.fromkeys(records)
    try:
        while under_way:
            number, news = await arrived.get()
            if isinstance(news, Exception):
                if not (ending.is_set() and any(under_way.values())):
                    records[number].fail()
                    raise spelled(news)
                for number, cut in under_way.items():
                    news = cut() if cut else NOT_BEGUN
                    records[number].count_chunk(news)
                    yield number, news
                return
            room.release()
            records[number].count_chunk(news)
            under_way[number] = news.cut or under_way[number]
            if news.finish_reason:
                del under_way[number]
            yield number, news
    finally:
        for record in records.values():
            record.close()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _interrupt(ending: asyncio.Event, arrived: Arrivals) -> None:
    await ending.wait()
    arrived.put_nowait((0, Unreachable("this API is shutting down; ask again later")))


async def _arrive(arrived: Arrivals, room: asyncio.Semaphore, number: int, news: Chunk | Exception) -> None:
    """Hand on what an answer has, then wait for room for more: so nothing of it is lost when it is cut."""
    arrived.put_nowait((number, news))
    await room.acquire()


class _Places:
    """Those of one request's answers at the server: an answer that finds none waits until another one has ended."""

    def __init__(self, answers: int) -> None:
        self._active = answers  # that do not wait
        self._served = False  # an answer has ended
        self._freed = asyncio.Semaphore(0)

    def free(self) -> None:
        self._active -= 1
        self._served = True
        self._freed.release()

    async def wait_for_place(self) -> bool:
        """Wait for the next one; False: none of the answers has found any."""
        self._active -= 1
        found = bool(self._active) or self._served
        if self._active:
            await self._freed.acquire()
        elif self._served:  # others have taken them
            await asyncio.sleep(RETRY_SECONDS)
        self._active += 1
        return found


async def _pump(
    answer: Answer,
    task: Task,
    hand_on: Callable[[Chunk | Exception], Awaitable[None]],
    places: _Places,
    waiting: WaitingRoom,
) -> None:
    begun = False
    try:
        with waiting.entry() as wait:
            while True:
                try:
                    async with aclosing(answer(task)) as chunks:
                        async for chunk in chunks:
                            begun = True
                            await hand_on(chunk)
                            if chunk.finish_reason:
                                return places.free()
                    raise EngineError("the answer ended without a finish reason")
                except Overloaded as refusal:
                    if begun:
                        raise
                    if not await places.wait_for_place():
                        await wait(refusal)
                except InvalidRequest as error:  # a picture may look whole to a device, and not be
                    fewer = without_earlier_images(task.prompt) if error.field == "images" else task.prompt
                    if begun or fewer == task.prompt:
                        raise
                    task = replace(task, prompt=fewer)
    except Exception as error:
        await hand_on(error)


async def whole(chunks: AsyncGenerator[tuple[int, Chunk], None], reply: Told) -> dict[str, Any]:
    """The answers as one object."""
    async with aclosing(chunks):
        async for number, chunk in chunks:
            reply.push(number, chunk)
            if number == 0:
                name_coarse(reply.headers, chunk.coarse_tools)
    return reply.whole()


async def read_first_chunks(
    chunks: AsyncGenerator[tuple[int, Chunk], None], answers: int
) -> list[tuple[int, Chunk]]:
    """The chunks until each answer has begun. Raises the error of an answer that cannot start."""
    first: list[tuple[int, Chunk]] = []
    async for number, chunk in chunks:
        first.append((number, chunk))
        if len({number for number, _ in first}) == answers:
            break
    return first


class EventStream(Response):
    """The answers as server-sent events. The first chunks are awaited before it, so that early errors have a status.

    While the verification server is away or reads the prompt, the stream sends a sign of life every `heartbeat` seconds
    (0 = never), so that clients and proxies do not close a silent connection.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: list[tuple[int, Chunk]],
        rest: AsyncGenerator[tuple[int, Chunk], None],
        reply: Told,
        heartbeat: float,
    ) -> None:
        local = any(first_unverified(chunk.origins) for _, chunk in first)
        headers = {**reply.headers, **({LOCAL_HEADER: LOCAL_ONLY} if local else {})}
        for number, chunk in first:
            if number == 0:  # what one answer has, the others have
                name_coarse(headers, chunk.coarse_tools)
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._first, self._rest, self._reply = first, rest, reply
        self._heartbeat, self._sent_at = heartbeat, time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            try:
                await run_while_connected(receive, self._send_all(send))
            except ClientDisconnect:
                log.debug("the client left; its answer is cancelled")

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._events()) as events:
            async for event in events:
                await send(_body(event, more=True))
                self._sent_at = time.monotonic()
        await send(_body(b"", more=False))

    async def _events(self) -> AsyncGenerator[bytes, None]:
        reply = self._reply
        try:
            for payload in reply.opening():
                yield reply.event(payload)
            for number, chunk in self._first:
                for event in self._format_chunk(number, chunk):
                    yield event
            async for number, chunk in self._rest:
                for event in self._format_chunk(number, chunk):
                    yield event
            for payload in reply.closing():
                yield reply.event(payload)
        except Exception as error:
            if not isinstance(error, OpenSledError):
                log.exception("an answer failed midway")
            current().code = code_of(error)
            for payload in reply.failure(error_object(error)):
                yield reply.event(payload)
        else:
            for event in reply.end:
                yield event

    def _format_chunk(self, number: int, chunk: Chunk) -> Iterator[bytes]:
        for payload in self._reply.push(number, chunk):
            yield self._reply.event(payload)
        status = chunk.status or ("thinking" if chunk.thoughts else "")  # which the client may not be told of
        if status and 0 < self._heartbeat <= time.monotonic() - self._sent_at:
            yield self._reply.heartbeat(status)


def _body(content: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}
