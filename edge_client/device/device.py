"""A device at work: one link to a server, a few drafters, and the answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_client.device.answer_stream import AnswerStream
from edge_client.device.config import DeviceConfig
from edge_client.device.drafter_choice import FittingFactory
from edge_client.device.request_defaults import RequestDefaults, own_name
from edge_client.device.served_target import ServedTarget, TargetMemory, fetch_target, is_another, pads
from edge_client.device.telemetry import Telemetry
from edge_client.drafters.base import DrafterFactory
from edge_client.drafters.none import NoneDrafter, NoneFactory
from edge_client.drafters.vocabulary import Vocabulary
from edge_client.lengths import length_policy
from edge_client.lengths.base import DraftLengthPolicy, LengthOptions
from edge_client.lengths.battery import BatterySaver
from edge_client.lengths.board_watch import board_watch
from edge_client.lengths.words import NOTHING_TO_DRAFT_WITH, draft_status, resting
from edge_client.link.link import Endpoint, Link, endpoint_at
from edge_client.link.loading_server import describe_when_loaded
from edge_client.link.remote import RemoteSession, RetryPolicy
from edge_client.link.sent_images import SentImages
from edge_client.link.server_watch import ServerWatch
from edge_client.offline.local_only import own_key, own_prompt, require_possible
from edge_client.offline.modes import PROVISIONAL, Offline, retry_policy
from edge_client.round.drafting import DraftThread
from http_api.backend import Answer
from hw_profiles.sysfs import read_board
from opensled.core.answer import LOCAL_ONLY, Chunk, Task
from opensled.core.errors import NotFound, OpenSledError, Unauthorized, Unreachable, VocabularyMismatch
from opensled.core.files import user_path
from opensled.core.images import require_none
from opensled.core.messages import MATCH, ModelInfo, Open
from opensled.core.penalties import require_served
from opensled.core.protocol import Truth
from opensled.drafting.status import DraftStatus
from opensled.models.store import require_known
from opensled.net.address import is_local
from opensled.process.load_thread import in_thread_that_ends
from opensled.text.origins import possible
from opensled.text.tokenizer import TargetTokenizer

AWAY = "the verification server is away; try again"

log = logging.getLogger(__name__)


class Device:
    """Answers prompts with the target's text; at most `parallel` answers have drafts at the same time."""

    def __init__(
        self,
        link: Link,
        info: ModelInfo,
        tokenizer: TargetTokenizer,
        factory: DrafterFactory,
        lengths: DraftLengthPolicy,
        parallel: int = 1,
        retry: RetryPolicy = RetryPolicy(),
        rule: str = MATCH,
        cache: Path | None = None,
        defaults: RequestDefaults = RequestDefaults(),
        looks_ahead: bool = True,
        offline: Offline = Offline(),
        memory: TargetMemory | None = None,
        pad_frames: bool = False,
    ) -> None:
        """`memory`: of the target; with it the mode `local-only` is on. `pad_frames`: of every stream."""
        self.info, self.tokenizer, self.drafter_name = info, tokenizer, factory.name
        self._link, self._factory, self._lengths, self._retry = link, factory, lengths, retry
        self.rule, self._cache, self._defaults = rule, cache, defaults
        self._looks_ahead, self._offline, self._memory = looks_ahead, offline, memory
        self._pad_frames = pad_frames
        self._updating = asyncio.Lock()  # of the target
        self.parallel = self._unused = parallel
        self.telemetry = Telemetry()
        self._sent_images = SentImages()
        self._idle: list[DraftThread] = []
        self._latest: RemoteSession | None = None  # the sequence with drafts that was opened last
        self.watch = ServerWatch(link)

    def answering(self, scope: MutableMapping[str, Any]) -> Answer:
        """Every client of the API is the device's user."""
        return self.answer

    async def answer(self, task: Task) -> AsyncGenerator[Chunk, None]:
        """Stream one answer; the last chunk carries the finish reason and the statistics.

        Closing the generator frees the sequence on the server.
        """
        with self.telemetry.answer() as started:
            async with self._drafter(task.drafts or task.alone) as drafter:
                request = self._open(task, drafter.drafts)
                padded = pads(self._pad_frames, self.info)
                way = self._link.connect_padded if padded else self._link.connect
                session = RemoteSession(way, request, self._retry, self._link.fallback, self._sent_images)
                await self._begin(session, task)
                if drafter.drafts:
                    self._latest = None if session.away else session
                stream = AnswerStream(
                    session, drafter, task, self.info, self.tokenizer, self._offline, self.telemetry, started
                )
                async with aclosing(stream):
                    while not (chunk := await stream.next()).finish_reason:
                        yield chunk
        yield chunk

    @property
    def origins(self) -> list[str]:
        """Where the tokens of its answers can come from (opensled/text/origins.py)."""
        loose = any(
            rule.name == self.rule.partition(":")[0] and not rule.lossless for rule in self.info.rules
        )
        drafts = self.drafter_name != NoneFactory.name
        return possible(drafts, loose, self._offline.mode == PROVISIONAL, self.writes_alone)

    @property
    def writes_alone(self) -> bool:
        """Whether the draft model may answer without the target: mode `local-only`."""
        return self._memory is not None

    @property
    def server_away(self) -> bool:
        """Whether the server cannot be reached, as `watch` last heard."""
        return self.watch.away

    @property
    def refusal(self) -> str:
        """Why no request can be answered although the server is there; "" = nothing speaks against it."""
        return self.watch.refusal

    @property
    def unready(self) -> str:
        """Why no request can be answered now, by the server or the fallback, or by the draft model alone; "" = it can.

        May be asked from any thread.
        """
        reachable = not self.server_away or bool(self._link.fallback) or self._memory is not None
        return self.refusal or ("" if reachable else AWAY)

    async def _begin(self, session: RemoteSession, task: Task) -> None:
        """Open the sequence, or prepare it for the draft model if no server can be reached and it may answer alone.

        If the server serves another target now, the device learns to know that target for the next answer.
        """
        if task.alone:
            await self._begin_alone(session, task, Unreachable("the draft model alone is asked"))
            return
        self.watch.require_admitted()
        described, began = self.info, time.monotonic()
        try:
            await session.open()
            self.telemetry.add_opening(time.monotonic() - began)
            self.watch.note_admission()
        except Unauthorized as error:
            self.watch.note_refusal(error)
            raise
        except Unreachable as error:
            await self._begin_alone(session, task, error)
        except (NotFound, VocabularyMismatch) as error:
            if not is_another(error):
                raise
            async with self._updating:
                if self.info is described:
                    await self._update_target()
            raise Unreachable(f"the server now serves {self.info.model_id}; ask again") from error

    async def _begin_alone(self, session: RemoteSession, task: Task, cause: Unreachable) -> None:
        """Make what a server would send: the ids of the prompt and a noise key. A chat template can be slow.

        Raises Unreachable, for `cause`, if the draft model may not answer alone, or not this task.
        """
        if self._memory is None:
            raise cause
        require_possible(task, cause)
        known = self._memory.recall()
        template = known.chat_template if known else ""
        ids = await asyncio.to_thread(own_prompt, task, self.info, self.tokenizer, template)
        session.truth = Truth(ids)
        session.noise_key = own_key(task.params)

    async def _update_target(self) -> None:
        try:
            target = await fetch_target(self._link, self.rule, self._factory, self._cache)
            if self._memory:
                await self._memory.keep(self._link, target.info)
        except OpenSledError as error:
            raise Unreachable(f"the server serves another target now: {error}") from error
        if target.info.fingerprint != self.info.fingerprint:
            self._dismiss(*self._idle)
            self._idle = []
        self.info, self.tokenizer, self.drafter_name = target.info, target.tokenizer, self._factory.name
        self.telemetry.forget_rates()
        log.warning("the server serves %s now; going on with it", self.info.model_id)

    def _open(self, task: Task, drafts: bool) -> Open:
        require_served(task.params, self.info)
        if self.info.images is None:
            require_none(task.images)
        return Open(
            prompt=task.prompt,
            images=task.images,
            params=task.params,
            rule=self.rule,
            model_id=self.info.model_id,
            fingerprint=self.info.fingerprint,
            top_logprobs=task.top_logprobs,
            prompt_logprobs=task.prompt_logprobs,
            guide=task.guide,
            takes_unverified=self.writes_alone,
            template_variables=task.template_variables,
            **self._defaults.opening(task, drafts),
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """How the drafter's vocabulary relates to the target's."""
        return self._factory.vocabulary

    @property
    def status(self) -> DraftStatus:
        """How the device drafts now, why, and what it brings."""
        counts, session = self.telemetry, self._latest
        if self.drafter_name == NoneFactory.name:
            status = resting(NOTHING_TO_DRAFT_WITH)
        else:
            limits = session.limits if session else self.info.limits
            status = draft_status(self._lengths, limits, session.turn if session else None)
        words = "; ".join(filter(None, [status.words, self._factory.note]))
        drafted, plain = counts.rate_drafted, counts.rate_plain
        return replace(
            status,
            words=words,
            drafted_rate=drafted.ratio or None,
            plain_rate=plain.ratio or None,
            compared=int(min(drafted.seen, plain.seen)),
        )

    @property
    def drafters_busy(self) -> int:
        return self.parallel - self._unused - len(self._idle)

    @asynccontextmanager
    async def _drafter(self, wanted: bool = True) -> AsyncIterator[DraftThread]:
        """A drafter of the pool. If all are busy, or none is `wanted`, the server decodes alone: that is not slower
        than to wait."""
        drafter = None
        if wanted:
            drafter = self._idle.pop() if self._idle else await self._new_drafter()
        pooled = drafter is not None
        drafter = drafter or DraftThread(NoneDrafter(), self._lengths)
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
        """Close drafters of another vocabulary; new ones may take their places."""
        for drafter in drafters:
            drafter.close()
        self._unused += len(drafters)

    async def _new_drafter(self) -> DraftThread | None:
        """One more drafter for the pool; None if the pool is full or the drafter cannot be made now."""
        if not self._unused:
            return None
        self._unused -= 1
        try:
            drafter = await asyncio.to_thread(in_thread_that_ends, self._factory.create)
        except Exception:
            self._unused += 1
            log.exception("no further drafter can be made; the server decodes this answer alone")
            return None
        except BaseException:  # the answer was cancelled
            self._unused += 1
            raise
        placeholder = self.info.images.token_id if self.info.images else None
        return DraftThread(drafter, self._lengths, self.info.vocab_size, self._looks_ahead, placeholder)

    async def close(self) -> None:
        for drafter in self._idle:
            drafter.close()
        await self._link.close()


async def connect(
    config: DeviceConfig, parallel: int = 1, shows_vetted: bool = False, to_listen: float = 0.0
) -> Device:
    """A device as configured. `shows_vetted`: see `Offline`; `to_listen`: see `describe_when_loaded`."""
    if not config.draft_url:  # else it is a name of that server's
        require_known(config.draft_model)
    endpoint = endpoint_of(config)
    for server in filter(None, (config.server, config.fallback)):
        if endpoint.token and not endpoint.tls and not is_local(server):
            log.warning("the bearer token travels to %s in clear text; add --tls", server)
    link, cache = Link(endpoint), user_path(config.cache_dir)
    memory = TargetMemory(cache, config.server) if config.offline == LOCAL_ONLY else None
    try:
        factory, target = await _first_target(link, config, cache, memory, to_listen)
        pads(config.pad_frames, target.info)
        _tell_limit(config.draft_length, target.info.limits.max_draft)
    except BaseException:
        await link.close()
        raise
    defaults = RequestDefaults(
        config.pace, config.background, config.device_name or own_name(config.token_file)
    )
    board = await asyncio.to_thread(read_board)
    lengths = _length_policy(config, has_battery=board.battery_percent is not None)
    return Device(
        link, target.info, target.tokenizer, factory, lengths, parallel,
        retry_policy(config.offline, config.give_up),
        rule=config.rule, cache=cache, defaults=defaults, looks_ahead=config.look_ahead,
        offline=Offline(config.offline, shows_vetted=shows_vetted), memory=memory,
        pad_frames=config.pad_frames,
    )  # fmt: skip


def _tell_limit(wanted: int, most: int) -> None:
    """A draft is cut to what the server takes; that is no error, but its owner should know."""
    if wanted > most:
        log.warning(
            "--draft-length %d: the server takes drafts of at most %d tokens, and gets no longer ones; for more, set "
            "its max-draft in [limits] to %d",
            wanted,
            most,
            wanted,
        )


def _length_policy(config: DeviceConfig, has_battery: bool) -> DraftLengthPolicy:
    options = LengthOptions(config.draft_length, config.confidence, config.draft_tree)
    policy, floor = length_policy(config.stop, options), config.battery_floor
    return BatterySaver(policy, floor, board_watch()) if has_battery and floor else policy


async def _first_target(
    link: Link, config: DeviceConfig, cache: Path, memory: TargetMemory | None, to_listen: float
) -> tuple[DrafterFactory, ServedTarget]:
    """The drafters and the target. A server that loads is waited for, and one that does not answer is an error, unless
    the target is remembered.

    The server is asked before a draft model is looked for: its target decides which one fits.
    """
    factory = FittingFactory(config)
    try:
        await (link.describe() if memory and memory.recall() else describe_when_loaded(link, to_listen))
    except Unreachable as error:
        if memory is None:
            raise
        log.warning("%s; until then the draft model answers alone", error)
        return factory, await memory.target(factory, error)
    target = await fetch_target(link, config.rule, factory, cache)
    if memory:
        await memory.keep(link, target.info)
    return factory, target


def endpoint_of(config: DeviceConfig) -> Endpoint:
    """Where the server is, and this device's credentials. Raises UsageError or NotFound for a file it cannot use."""
    return replace(endpoint_at(config), fallback=config.fallback)
