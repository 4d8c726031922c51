"""A device at work: one link to a server, a few drafters, and answers for whoever asks."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from edge_client.answer import Chunk, Habits, Origin, Stats, Task
from edge_client.config import LinkConfig
from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import DrafterFactory
from edge_client.drafters.none import NoneDrafter
from edge_client.drafting import DraftThread
from edge_client.generate import Commit, generate
from edge_client.link import Endpoint, Link
from edge_client.remote import Patience, RemoteSession
from edge_client.stop import UNADVISED, BlockRule, StopRule
from edge_client.target import is_another, meet
from edge_client.telemetry import Account, Telemetry
from edge_client.tokenizer import EdgeTokenizer, Text
from opensled.address import is_local
from opensled.errors import NotFound, OpenSledError, Unreachable, UsageError, VocabularyMismatch
from opensled.files import read_secret_text
from opensled.messages import MATCH, ModelInfo, Open, TokenLogprobs
from opensled.pem import read_identity

log = logging.getLogger(__name__)


class Device:
    """Answers prompts with the target's words, at most `parallel` of them drafted here at a time."""

    def __init__(
        self,
        link: Link,
        info: ModelInfo,
        tokenizer: EdgeTokenizer,
        factory: DrafterFactory,
        stop: BlockRule,
        parallel: int = 1,
        patience: Patience = Patience(),
        rule: str = MATCH,
        cache: Path | None = None,
        habits: Habits = Habits(),
        looks_ahead: bool = True,
    ) -> None:
        self.info, self.tokenizer, self.drafter_name = info, tokenizer, factory.name
        self._link, self._factory, self._stop, self._patience = link, factory, stop, patience
        self.rule, self._cache, self._habits = rule, cache, habits
        self._looks_ahead = looks_ahead
        self._meeting = asyncio.Lock()
        self.parallel = self._unused = parallel
        self.telemetry = Telemetry()
        self._idle: list[DraftThread] = []

    async def answer(self, task: Task) -> AsyncGenerator[Chunk, None]:
        """Stream one answer; the last chunk carries the finish reason and the statistics.

        Closing the generator frees the sequence on the server.
        """
        with self.telemetry.answer() as account:
            async with self._drafter() as drafter:
                request = self._open(task, drafts=drafter.drafts)
                session = RemoteSession(self._link.connect, request, self._patience)
                account.session = session
                await self._begin(session)
                async with aclosing(generate(session, drafter, task.params)) as commits:
                    async for chunk in self._chunks(session, commits, task.stop, account):
                        yield chunk

    async def _begin(self, session: RemoteSession) -> None:
        """Open a sequence. When the server serves another target by now, get to know that for the next one."""
        described = self.info
        try:
            await session.open()
        except (NotFound, VocabularyMismatch) as error:
            if not is_another(error):
                raise
            async with self._meeting:
                if self.info is described:
                    await self._meet_again()
            raise Unreachable(f"the server serves {self.info.model_id} now; ask again") from error

    async def _meet_again(self) -> None:
        try:
            target = await meet(self._link, self.rule, self._factory, self._cache)
        except OpenSledError as error:
            raise Unreachable(f"the server serves another target now: {error}") from error
        if target.info.fingerprint != self.info.fingerprint:
            self._dismiss(*self._idle)
            self._idle = []
        self.info, self.tokenizer = target.info, target.tokenizer
        log.warning("the server serves %s now; going on with it", self.info.model_id)

    def _open(self, task: Task, drafts: bool) -> Open:
        return Open(
            prompt=task.prompt,
            params=task.params,
            rule=self.rule,
            model_id=self.info.model_id,
            fingerprint=self.info.fingerprint,
            top_logprobs=task.top_logprobs,
            guide=task.guide,
            **self._habits.opening(task, drafts),
        )

    async def _chunks(
        self,
        session: RemoteSession,
        commits: AsyncGenerator[Commit, None],
        stop: tuple[str, ...],
        account: Account,
    ) -> AsyncIterator[Chunk]:
        stats = Stats(prompt_tokens=len(session.truth), completion_tokens=0)
        text = Text(self.tokenizer, stop)
        shown = ""
        tokens: tuple[int, ...] = ()
        logprobs: tuple[TokenLogprobs, ...] = ()
        origins: tuple[Origin, ...] = ()
        async for commit in commits:
            tokens, shown = text.push(commit.tokens)
            logprobs, origins = commit.logprobs[: len(tokens)], commit.origins[: len(tokens)]
            stats = count(stats, commit, len(tokens))
            account.commit(commit, len(tokens))
            if text.stopped or session.truth.finish_reason:
                break
            yield Chunk(shown, tokens, logprobs=logprobs, origins=origins)
        reason = "stop" if text.stopped else session.truth.finish_reason
        account.finish(reason)
        stats = replace(stats, seconds=account.seconds)
        yield Chunk(shown + text.flush(), tokens, reason, stats, logprobs=logprobs, origins=origins)

    @property
    def drafters_busy(self) -> int:
        return self.parallel - self._unused - len(self._idle)

    @asynccontextmanager
    async def _drafter(self) -> AsyncIterator[DraftThread]:
        """A drafter of the pool; when all are busy the server decodes alone, which is never worse than waiting."""
        drafter = self._idle.pop() if self._idle else await self._new_drafter()
        pooled = drafter is not None
        drafter = drafter or DraftThread(NoneDrafter(), self._stop)
        vocabulary = self.info.fingerprint
        try:
            yield drafter
        finally:
            if not pooled:
                drafter.close()
            elif vocabulary == self.info.fingerprint:
                self._idle.append(drafter)
            else:
                self._dismiss(drafter)

    def _dismiss(self, *drafters: DraftThread) -> None:
        """End drafters that know another vocabulary; new ones may take their places."""
        for drafter in drafters:
            drafter.close()
        self._unused += len(drafters)

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
        return DraftThread(drafter, self._stop, self.info.vocab_size, self._looks_ahead)

    async def close(self) -> None:
        for drafter in self._idle:
            drafter.close()
        await self._link.close()


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
    endpoint = endpoint_of(config)
    if endpoint.token and not endpoint.tls and not is_local(config.server):
        log.warning("the bearer token travels to %s in clear text; add --tls", config.server)
    link = Link(endpoint)
    try:
        await link.describe()  # a server that is not there is told before a draft model is looked for
        factory = _factory(config)
        cache = Path(config.cache_dir).expanduser()
        target = await meet(link, config.rule, factory, cache)
    except BaseException:
        await link.close()
        raise
    confidence = config.confidence if config.stop == "confidence" else 0.0
    stop = StopRule(config.draft_length or UNADVISED, confidence, may_grow=not config.draft_length)
    habits = Habits(config.pace, config.background, config.device_name or secrets.token_hex(8))
    return Device(
        link, target.info, target.tokenizer, factory, stop, parallel,
        rule=config.rule, cache=cache, habits=habits, looks_ahead=config.look_ahead,
    )  # fmt: skip


def endpoint_of(config: LinkConfig) -> Endpoint:
    """Where the server is and what lets this device in; raises UsageError or NotFound for a file of no use."""
    return Endpoint(
        server=config.server,
        token=_read_token(config.token_file),
        tls=config.tls or bool(config.tls_ca or config.tls_cert),
        tls_ca=Path(config.tls_ca) if config.tls_ca else None,
        identity=read_identity(config.tls_cert, config.tls_key),
    )


def _factory(config: LinkConfig) -> DrafterFactory:
    kind = DRAFTERS.get(config.drafter)
    if not hasattr(kind, "check_vocabulary"):
        raise UsageError(
            f"{config.drafter} is no drafter factory (edge_client/drafters/base.py says what one is)"
        )
    factory: DrafterFactory = kind(config.draft_model, config.threads)
    return factory


def _read_token(path: str) -> str:
    words = read_secret_text(path, "token file").split() if path else [""]
    if not words:
        raise UsageError(f"token file {path} is empty; write the bearer token into it")
    return words[0]
