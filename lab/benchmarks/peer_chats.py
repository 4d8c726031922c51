"""One contender of figure `serving`: users who ask an OpenAI server at the same time, and what that took."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from lab.testbed.client import StreamedReply, stream_chat
from lab.testbed.process_guard import cpu_s

TIMEOUT_S = 600.0


@dataclass
class Contender:
    """An OpenAI server, and what it answered over all repeats."""

    url: str
    pid: int  # of the server
    first_s: list[float] = field(default_factory=list)  # of each answer: seconds to its first text
    cpu_s: float = 0.0  # of the server for all answers
    tokens: int = 0  # of all answers

    def speed(self, bodies: Sequence[dict[str, Any]]) -> float:
        """Output tokens/s, from the first question to the last answer, of users who all ask at the same time."""
        before = cpu_s(self.pid)
        seconds, replies = asyncio.run(self._ask(bodies))
        self.cpu_s += cpu_s(self.pid) - before
        tokens: int = sum(reply.usage["completion_tokens"] for reply in replies)
        self.tokens += tokens
        return tokens / seconds

    def forget(self) -> None:
        """What was asked so far only warmed up."""
        self.first_s.clear()
        self.cpu_s, self.tokens = 0.0, 0

    async def _ask(self, bodies: Sequence[dict[str, Any]]) -> tuple[float, list[StreamedReply]]:
        async with httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, trust_env=False) as http:
            await http.get("/v1/models")  # the connection is not what is measured
            started = time.perf_counter()
            replies = await asyncio.gather(*(self._hear(stream_chat(http, body)) for body in bodies))
            return time.perf_counter() - started, list(replies)

    async def _hear(self, replies: AsyncIterator[StreamedReply]) -> StreamedReply:
        first, reply = 0.0, StreamedReply()
        async for reply in replies:
            first = first or (reply.seconds if reply.text else 0.0)
        self.first_s.append(first)
        return reply
