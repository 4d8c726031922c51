"""Answers on their way out: server-sent events, and an end to the work when the reader has gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge_client.answer import Chunk
from edge_client.api.failures import error_object
from edge_client.api.responses import ChatForm, CompletionForm, to_json
from opensled.errors import EngineError, OpenSledError

log = logging.getLogger(__name__)
T = TypeVar("T")
NO_END = "the answer ended without a finish reason"
Form = ChatForm | CompletionForm


async def attended(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; when the client leaves first, `work` is cancelled and ClientDisconnect raised."""
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


async def whole(chunks: AsyncGenerator[Chunk, None], form: Form) -> dict[str, Any]:
    """The answer as one object."""
    text = ""
    async with aclosing(chunks):
        async for chunk in chunks:
            text += chunk.text
            if chunk.finish_reason and chunk.stats:
                return form.whole(text, chunk.finish_reason, chunk.stats)
    raise EngineError(NO_END)


async def first_of(chunks: AsyncGenerator[Chunk, None]) -> Chunk:
    """The first chunk; the errors of an answer that cannot start come from here."""
    first = await anext(chunks, None)
    if first is None:
        raise EngineError(NO_END)
    return first


class EventStream(Response):
    """The answer as server-sent events. Its first chunk was awaited before, so that early errors have a status."""

    media_type = "text/event-stream"

    def __init__(
        self, first: Chunk, rest: AsyncGenerator[Chunk, None], form: Form, include_usage: bool
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first, self._rest = first, rest
        self._form, self._include_usage = form, include_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            try:
                await attended(receive, self._send_all(send))
            except ClientDisconnect:
                log.debug("the client left; its answer is cancelled")

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._events()) as events:
            async for event in events:
                await send(_body(b"data: " + event + b"\n\n", more=True))
        await send(_body(b"", more=False))

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._payloads()) as payloads:
                async for payload in payloads:
                    yield to_json(payload)
        except OpenSledError as error:
            yield to_json(error_object(error))
        except Exception as error:
            log.exception("an answer failed midway")
            yield to_json(error_object(error))
        else:
            yield b"[DONE]"

    async def _payloads(self) -> AsyncGenerator[dict[str, Any], None]:
        form = self._form
        if opening := form.first():
            yield self._with_usage(opening)
        chunk: Chunk | None = self._first
        while chunk is not None:
            if chunk.text:
                yield self._with_usage(form.piece(chunk.text))
            if chunk.finish_reason and chunk.stats:
                yield self._with_usage(form.last(chunk.finish_reason))
                if self._include_usage:
                    yield form.account(chunk.stats)
                return
            chunk = await anext(self._rest, None)
        raise EngineError(NO_END)

    def _with_usage(self, payload: dict[str, Any]) -> dict[str, Any]:
        """With include_usage every chunk has the field, and only the last one a value."""
        return {**payload, "usage": None} if self._include_usage else payload


def _body(content: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}
