"""One answer under way: what the server commits becomes chunks for the reader, and is counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from edge_client.commits import Commit
from edge_client.drafting import Drafting, DraftThread
from edge_client.generate import generate
from edge_client.offline.local_only import local_commits, require_possible
from edge_client.offline.modes import PROVISIONAL, Offline
from edge_client.offline.provisional import ProvisionalDrafting
from edge_client.remote import RemoteSession
from edge_client.telemetry import Telemetry
from opensled.answer import LOCAL_ONLY, Chunk, Stats, Task
from opensled.answer_text import AnswerText
from opensled.errors import Unreachable
from opensled.messages import ModelInfo
from opensled.protocol import EndRules, Truth
from opensled.tokenizer import TargetTokenizer


class AnswerStream:
    """Gives one answer, a chunk at a time. Close it: that frees the sequence on the server."""

    def __init__(
        self,
        session: RemoteSession,
        thread: DraftThread,
        task: Task,
        info: ModelInfo,
        tokenizer: TargetTokenizer,
        offline: Offline,
        telemetry: Telemetry,
        started: float,
    ) -> None:
        """`session`: open; or away, with a prompt and a noise key of the device's own: then the draft model answers.

        `started`: when the reader asked, in seconds of the monotonic clock.
        """
        self._session, self._thread, self._task, self._offline = session, thread, task, offline
        self._telemetry, self._started, self._truth = telemetry, started, session.truth
        self._text = AnswerText(tokenizer, task.stop)
        self._ends = end_rules(info, task, self._truth)
        self._stats = Stats(prompt_tokens=len(self._truth), completion_tokens=0, rule=session.rule)
        goes_on = offline.mode == PROVISIONAL and thread.drafts
        self._provisional = ProvisionalDrafting(thread, self._ends, offline.most) if goes_on else None
        self._drafting: Drafting = self._provisional or thread
        self._commits = self._local() if session.away else generate(session, self._drafting, task.params)
        # None = the draft model answers alone
        self._watched = None if session.away else watched(self._commits, session, offline, self._provisional)

    async def next(self) -> Chunk:
        """The next chunk; the last one carries the finish reason and the statistics."""
        event = await self._event()
        if isinstance(event, float):
            return Chunk("", (), waiting=event, provisional=self._guess())
        tokens, text = self._text.commit(event.tokens)
        logprobs, origins = event.logprobs[: len(tokens)], event.origins[: len(tokens)]
        self._telemetry.commit(self._stats, event, len(tokens), self._seconds)
        reason = "stop" if self._text.stopped else self._truth.finish_reason
        if not reason:
            return Chunk(text, tokens, logprobs=logprobs, origins=origins, provisional=self._guess())
        await self._stop()
        self._stats.seconds, self._stats.wasted = self._seconds, self._drafting.wasted
        self._telemetry.finish(self._stats, reason)
        return Chunk(text + self._text.flush(), tokens, reason, self._stats, origins, logprobs)

    async def aclose(self) -> None:
        """Give up what is under way, and count what it cost."""
        await self._stop()
        self._telemetry.reopened += self._session.reopened
        self._telemetry.wasted += self._drafting.wasted

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    async def _event(self) -> Commit | float:
        """The next commit, or for how many seconds the server is away; from the draft model where it may answer."""
        if self._watched is None:
            return await anext(self._commits)
        try:
            return await anext(self._watched)
        except Unreachable as error:
            if self._offline.mode != LOCAL_ONLY:
                raise
            require_possible(self._task, error)
            await self._stop()
            self._watched, self._commits = None, self._local()
            return await anext(self._commits)

    async def _stop(self) -> None:
        if self._watched is not None:
            await self._watched.aclose()
        await self._commits.aclose()

    def _local(self) -> AsyncGenerator[Commit, None]:
        key = self._session.noise_key
        return local_commits(self._thread, self._truth, self._task.params, key, self._ends)

    def _guess(self) -> str:
        """The text of what was drafted while the server is away, and is not verified yet."""
        ahead = self._provisional.ahead(self._truth) if self._provisional else ()
        return self._text.guess([token.id for token in ahead]) if ahead else ""


def end_rules(info: ModelInfo, task: Task, truth: Truth) -> EndRules:
    """What ends a sequence of this target, as its server sees it."""
    params = task.params
    eos = frozenset() if params.ignore_eos else frozenset(info.eos_ids)
    last = min(truth.prompt_length + params.max_tokens, info.limits.context_length)
    return EndRules(eos, frozenset(params.stop_ids), last)


async def watched(
    commits: AsyncGenerator[Commit, None],
    session: RemoteSession,
    offline: Offline,
    provisional: ProvisionalDrafting | None = None,
) -> AsyncGenerator[Commit | float, None]:
    """The commits; between two of them, while the server is away, the seconds for which it has been silent.

    `provisional`: drafts while the server is away; None = nothing is drafted then.
    """
    reading: asyncio.Future[Commit] | None = None
    drafting: asyncio.Future[bool] | None = None
    try:
        while True:
            reading, since = asyncio.ensure_future(_next(commits)), time.monotonic()
            while not await _arrived(reading, drafting, offline.look):
                seconds = time.monotonic() - since
                if session.away or seconds >= offline.quiet:
                    if provisional is not None and (drafting is None or drafting.done()):
                        # After the last segment for now, the next try has to wait for the next check.
                        more = drafting is None or drafting.result()
                        drafting = asyncio.ensure_future(provisional.go_on(session.truth)) if more else None
                    yield seconds
            yield reading.result()
    finally:
        under_way = [task for task in (reading, drafting) if task is not None]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _next(commits: AsyncGenerator[Commit, None]) -> Commit:
    return await anext(commits)


async def _arrived(
    reading: asyncio.Future[Commit], drafting: asyncio.Future[bool] | None, seconds: float
) -> bool:
    """Wait for the next commit, at most so many seconds or until more is drafted."""
    waited_for: set[asyncio.Future[Any]] = {reading}
    if drafting and not drafting.done():
        waited_for.add(drafting)
    await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return reading.done()
