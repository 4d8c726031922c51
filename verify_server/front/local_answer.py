"""One answer of the server's own API: what its sequence commits becomes chunks of text."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace

from opensled.core.answer import Chunk, Origin, PromptTokens, Stats
from opensled.core.errors import ProtocolError
from opensled.core.messages import Open, Opened, Prefill, ServerMessage, Verdict
from opensled.core.protocol import Truth
from opensled.text.answer_text import AnswerText
from opensled.text.thinking import ThoughtReader

SERVER: Origin = "server"
ReadsThoughts = Callable[[Sequence[int]], ThoughtReader]


class LocalAnswer:
    """Goes on over several sequences, if the first ones are lost; `opening` begins the next one."""

    def __init__(self, opening: Open, text: AnswerText, started: float, reads: ReadsThoughts | None) -> None:
        """`started`: when the client asked, in seconds of the monotonic clock. `reads`: makes of a prompt's ids what
        tells thoughts from the rest; None = all is text."""
        self.opening, self._text, self._started, self._reads = opening, text, started, reads
        self._truth: Truth | None = None
        self._prompt = PromptTokens()
        self._stats = Stats(0, 0)

    @property
    def committed(self) -> int:
        """Tokens known, prompt included; 0 = it has not begun."""
        return len(self._truth) if self._truth else 0

    async def chunks(self, messages: AsyncIterator[ServerMessage]) -> AsyncGenerator[Chunk, None]:
        """What this sequence adds; the last chunk of the answer has its finish reason."""
        opened = await anext(messages)
        truth = self._begin(opened)
        if isinstance(opened, Opened) and opened.coarse_tools:
            yield Chunk("", (), coarse_tools=opened.coarse_tools)
        async for message in messages:
            if isinstance(message, Prefill):
                yield self._read(message, truth)
            if isinstance(message, Verdict):
                chunk = self._chunk(message, truth)
                if truth.generated:
                    self.opening = replace(self.opening, committed=truth.generated, prompt_logprobs=None)
                yield chunk
                if chunk.finish_reason:
                    return

    def _begin(self, opened: object) -> Truth:
        """The sequence is open: what it takes to open it again."""
        if not isinstance(opened, Opened):
            raise ProtocolError("the server did not open the sequence; see its log")
        if self._truth is None:
            self._truth = Truth(opened.prompt_ids)
            self._text.think(self._reads(opened.prompt_ids) if self._reads else None)
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
        news = self._prompt.news(prefill)
        if news is None:
            raise _missing_error()
        return Chunk("", (), prefill=news, prompt=news.tokens)

    def _chunk(self, verdict: Verdict, truth: Truth) -> Chunk:
        news, stats = truth.extend(verdict) or (), self._stats
        if self.opening.prompt_logprobs is not None and self._prompt.known < truth.prompt_length:
            raise _missing_error()
        tokens, text, thoughts, thought = self._text.commit(news)
        if tokens and not stats.completion_tokens:
            stats.first_token = self._seconds
        stats.completion_tokens += len(tokens)
        stats.thought_tokens += thought
        stats.server_decoded += len(tokens)
        logprobs = verdict.logprobs[-len(news) :][: len(tokens)] if news else ()
        origins = (SERVER,) * len(tokens)
        reason = "stop" if self._text.stopped_by else truth.finish_reason
        chunk = Chunk(text, tokens, None, None, origins, logprobs, thoughts=thoughts, thought_tokens=thought)
        if not reason:
            return replace(chunk, cut=self._cut)
        return replace(self._end(chunk, reason), stopped_by=self._text.stopped_by)

    def _cut(self) -> Chunk:
        return self._end(Chunk("", ()), "length")

    def _end(self, chunk: Chunk, reason: str) -> Chunk:
        self._stats.seconds = self._seconds
        return chunk.finish(reason, self._stats, *self._text.end())

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started


def _missing_error() -> ProtocolError:
    return ProtocolError("the server left log-probabilities of the prompt out; ask again")
