"""A device at work: one link to a server, a few drafters, and answers for whoever asks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from edge_client import tokenizer as tokenizers
from edge_client.answer import Chunk, Stats
from edge_client.config import LinkConfig
from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import DrafterFactory
from edge_client.drafters.none import NoneDrafter
from edge_client.drafting import DraftThread
from edge_client.generate import Commit, generate
from edge_client.link import Endpoint, Link
from edge_client.remote import Patience, RemoteSession
from edge_client.stop import StopRule
from edge_client.tokenizer import EdgeTokenizer, StopStrings, TextStream
from opensled.address import host_port, is_loopback
from opensled.errors import UsageError
from opensled.files import read_ascii
from opensled.messages import ModelInfo, Open, Prompt, SamplingParams

log = logging.getLogger(__name__)


class Device:
    """Answers prompts with the target's words, at most `parallel` of them drafted here at a time."""

    def __init__(
        self,
        link: Link,
        info: ModelInfo,
        tokenizer: EdgeTokenizer,
        factory: DrafterFactory,
        stop: StopRule,
        parallel: int = 1,
        patience: Patience = Patience(),
    ) -> None:
        self.info, self.tokenizer, self.drafter_name = info, tokenizer, factory.name
        self._link, self._factory, self._stop, self._patience = link, factory, stop, patience
        self._unused = parallel
        self._idle: list[DraftThread] = []

    async def answer(
        self, prompt: Prompt, params: SamplingParams, stop: tuple[str, ...] = ()
    ) -> AsyncGenerator[Chunk, None]:
        """Stream one answer; the last chunk carries the finish reason and the statistics.

        Closing the generator frees the sequence on the server.
        """
        started = time.monotonic()
        request = Open(prompt, params, model_id=self.info.model_id, fingerprint=self.info.fingerprint)
        session = RemoteSession(self._link.connect, request, self._patience)
        async with self._drafter() as drafter:
            await session.open()
            async with aclosing(generate(session, drafter, params)) as commits:
                async for chunk in self._chunks(session, commits, stop, started):
                    yield chunk

    async def _chunks(
        self,
        session: RemoteSession,
        commits: AsyncGenerator[Commit, None],
        stop: tuple[str, ...],
        started: float,
    ) -> AsyncIterator[Chunk]:
        stats = Stats(prompt_tokens=len(session.truth), completion_tokens=0)
        text = Text(self.tokenizer, stop)
        shown = ""
        tokens: tuple[int, ...] = ()
        async for commit in commits:
            tokens, shown = text.push(commit.tokens)
            stats = count(stats, commit, len(tokens))
            if text.stopped or session.truth.finish_reason:
                break
            yield Chunk(shown, tokens)
        reason = "stop" if text.stopped else session.truth.finish_reason
        stats = replace(stats, seconds=time.monotonic() - started)
        yield Chunk(shown + text.flush(), tokens, reason, stats)

    @asynccontextmanager
    async def _drafter(self) -> AsyncIterator[DraftThread]:
        """A drafter of the pool; when all are busy the server decodes alone, which is never worse than waiting."""
        drafter = self._idle.pop() if self._idle else await self._new_drafter()
        pooled = drafter is not None
        drafter = drafter or DraftThread(NoneDrafter(), self._stop)
        try:
            yield drafter
        finally:
            if pooled:
                self._idle.append(drafter)
            else:
                drafter.close()

    async def _new_drafter(self) -> DraftThread | None:
        """One more for the pool, or None: the pool is full, or this device cannot make one now."""
        if not self._unused:
            return None
        self._unused -= 1
        try:
            drafter = await asyncio.to_thread(self._factory.create)
        except Exception:
            self._unused += 1
            log.exception("no further drafter can be made; the server decodes this answer alone")
            return None
        return DraftThread(drafter, self._stop, self.info.vocab_size)

    async def close(self) -> None:
        for drafter in self._idle:
            drafter.close()
        await self._link.close()


class Text:
    """The text of a growing answer, up to a stop string."""

    def __init__(self, tokenizer: EdgeTokenizer, stop: tuple[str, ...]) -> None:
        self._stream, self._stops = TextStream(tokenizer), StopStrings(stop)

    @property
    def stopped(self) -> bool:
        return self._stops.hit

    def push(self, ids: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        """The ids up to the one that completes a stop string, and the text that can be shown now."""
        shown = ""
        for count, token in enumerate(ids, 1):
            shown += self._stops.push(self._stream.push([token]))
            if self.stopped:
                return ids[:count], shown
        return ids, shown

    def flush(self) -> str:
        """The rest, once nothing follows."""
        if self.stopped:
            return ""
        return self._stops.push(self._stream.flush()) + self._stops.flush()


def count(stats: Stats, commit: Commit, tokens: int) -> Stats:
    """`stats` with a commit of which `tokens` tokens belong to the answer."""
    stats = replace(stats, completion_tokens=stats.completion_tokens + tokens)
    if not commit.drafted:
        return replace(stats, server_decoded=stats.server_decoded + tokens)
    return replace(
        stats,
        rounds=stats.rounds + 1,
        drafted=stats.drafted + commit.drafted,
        accepted=stats.accepted + min(commit.accepted, tokens),
        round_tokens=stats.round_tokens + tokens,
    )


async def connect(config: LinkConfig, parallel: int = 1) -> Device:
    """A device as configured; refuses a draft whose vocabulary is not the server's before anything is drafted."""
    endpoint = Endpoint(
        server=config.server,
        token=_read_token(config.token_file),
        tls=config.tls or bool(config.tls_ca),
        tls_ca=Path(config.tls_ca) if config.tls_ca else None,
    )
    if endpoint.token and not endpoint.tls and not is_loopback(host_port(config.server)[0]):
        log.warning("the bearer token travels to %s in clear text; add --tls", config.server)
    link = Link(endpoint)
    try:
        info = await link.describe()
        factory = _factory(config)
        factory.check_vocabulary(info)
        cache = Path(config.cache_dir).expanduser()
        tokenizer = await tokenizers.load(info, link.tokenizer_json, cache)
    except BaseException:
        await link.close()
        raise
    confidence = config.confidence if config.stop == "confidence" else 0.0
    return Device(link, info, tokenizer, factory, StopRule(config.draft_length, confidence), parallel)


def _factory(config: LinkConfig) -> DrafterFactory:
    kind = DRAFTERS.get(config.drafter)
    if not hasattr(kind, "check_vocabulary"):
        raise UsageError(
            f"{config.drafter} is no drafter factory (edge_client/drafters/base.py says what one is)"
        )
    factory: DrafterFactory = kind(config.draft_model, config.threads)
    return factory


def _read_token(path: str) -> str:
    words = read_ascii(path, "token file").split() if path else [""]
    if not words:
        raise UsageError(f"token file {path} is empty; write the bearer token into it")
    return words[0]
