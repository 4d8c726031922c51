"""One answer of the server's own API: what its sequence commits becomes chunks of text."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import replace

from opensled.answer import Chunk, Origin, Stats
from opensled.answer_text import AnswerText
from opensled.errors import ProtocolError
from opensled.messages import Open, Opened, Prefill, Verdict
from opensled.protocol import Truth
from verify_server.local_call import LocalCall

SERVER: Origin = "server"


class LocalAnswer:
    """Goes on over several calls, if the first ones are lost; `opening` begins the next one."""

    def __init__(self, opening: Open, text: AnswerText, started: float) -> None:
        """`started`: when the client asked, in seconds of the monotonic clock."""
        self.opening, self._text, self._started = opening, text, started
        self._truth: Truth | None = None
        self._stats = Stats(0, 0)

    @property
    def committed(self) -> int:
        """Tokens known, prompt included; 0 = it has not begun."""
        return len(self._truth) if self._truth else 0

    async def chunks(self, call: LocalCall) -> AsyncGenerator[Chunk, None]:
        """What this call adds; the last chunk of the answer has its finish reason."""
        truth = self._begun(await call.receive())
        reason = ""
        while not reason:
            message = await call.receive()
            if isinstance(message, Prefill):
                yield self._read(message, truth)
            if isinstance(message, Verdict):
                chunk = self._chunk(message, truth)
                self.opening = replace(self.opening, committed=truth.generated)
                reason = chunk.finish_reason or ""
                yield chunk

    def _begun(self, opened: object) -> Truth:
        """The call is open: what it takes to open it again."""
        if not isinstance(opened, Opened):
            raise ProtocolError("the server did not open the sequence; see its log")
        if self._truth is None:
            self._truth = Truth(opened.prompt_ids)
            self._stats.prompt_tokens = len(self._truth)
        if not self._truth.generated:
            self._stats.cached_tokens = 0  # another replica may compute all of the prompt
        self.opening = replace(
            self.opening,
            prompt=opened.prompt_ids,
            noise_key=opened.noise_key,
            resume_token=opened.resume_token,
        )
        return self._truth

    def _read(self, prefill: Prefill, truth: Truth) -> Chunk:
        if not truth.generated:
            self._stats.cached_tokens = prefill.cached
        return Chunk("", (), prefill=prefill)

    def _chunk(self, verdict: Verdict, truth: Truth) -> Chunk:
        news, stats = truth.extend(verdict) or (), self._stats
        tokens, text = self._text.commit(news)
        if tokens and not stats.completion_tokens:
            stats.first_token = self._seconds
        stats.completion_tokens += len(tokens)
        stats.server_decoded += len(tokens)
        logprobs = verdict.logprobs[-len(news) :][: len(tokens)] if news else ()
        origins = (SERVER,) * len(tokens)
        reason = "stop" if self._text.stopped_by else truth.finish_reason
        if not reason:
            return Chunk(text, tokens, origins=origins, logprobs=logprobs)
        stats.seconds = self._seconds
        text += self._text.flush()
        return Chunk(text, tokens, reason, stats, origins, logprobs, stopped_by=self._text.stopped_by)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started
