"""One answer under way: what the server commits becomes chunks for the reader, and is counted."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import replace

from edge_client.device.telemetry import Telemetry
from edge_client.link.remote import RemoteSession
from edge_client.offline.local_only import local_commits, require_possible
from edge_client.offline.modes import PROVISIONAL, Offline
from edge_client.offline.provisional import ProvisionalDrafting
from edge_client.offline.watching import watch_commits
from edge_client.round.commits import Commit
from edge_client.round.drafting import Drafting, DraftThread
from edge_client.round.generate import generate
from opensled.core.answer import LOCAL_ONLY, Chunk, Stats, Task
from opensled.core.errors import Unreachable
from opensled.core.messages import ModelInfo, Prefill, PromptToken, is_chat
from opensled.core.protocol import EndRules, Truth
from opensled.text.answer_text import AnswerText
from opensled.text.call_forms import call_marks
from opensled.text.thinking import reader_of
from opensled.text.tokenizer import TargetTokenizer


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
        marks = call_marks(task.guide, info.calls)
        self._text = AnswerText(tokenizer, task.stop, info.eos_ids, marks)
        if is_chat(task.prompt):
            self._text.think(reader_of(info.thoughts, tokenizer, self._truth.tokens, task.guide, info.calls))
        self._prompt: tuple[PromptToken, ...] = ()  # that no chunk has had yet
        self._last: Chunk | None = None  # once it is known, and until its reader has it
        session.hear_prefill = self._hear
        self._ends = end_rules(info, task, self._truth)
        self._stats = Stats(prompt_tokens=len(self._truth), completion_tokens=0, rule=session.rule)
        goes_on = offline.mode == PROVISIONAL and thread.drafts
        self._provisional = ProvisionalDrafting(thread, self._ends, offline.most) if goes_on else None
        self._drafting: Drafting = self._provisional or thread
        self._commits = self._local() if session.away else generate(session, self._drafting, task.params)
        # None = the draft model answers alone
        self._watched = (
            None if session.away else watch_commits(self._commits, session, offline, self._provisional)
        )

    async def next(self) -> Chunk:
        """The next chunk; the last one carries the finish reason and the statistics."""
        if coarse := self._session.coarse_tools:
            self._session.coarse_tools = ()
            return Chunk("", (), coarse_tools=coarse)
        event = await self._event()
        if isinstance(event, float):
            return Chunk("", (), waiting=event, provisional=self._guess())
        prompt, self._prompt = self._prompt, ()
        if isinstance(event, Prefill):
            return Chunk("", (), prefill=event, prompt=prompt, provisional=self._guess())
        tokens, text, thoughts, thought = self._text.commit(event.tokens)
        logprobs, origins = event.logprobs[: len(tokens)], event.origins[: len(tokens)]
        self._telemetry.commit(self._stats, event, len(tokens), self._seconds)
        self._stats.thought_tokens += thought
        chunk = Chunk(
            text,
            tokens,
            None,
            None,
            origins,
            logprobs,
            prompt=prompt,
            thoughts=thoughts,
            thought_tokens=thought,
        )
        reason = "stop" if self._text.stopped_by else self._truth.finish_reason
        if not reason:
            return replace(chunk, provisional=self._guess(), cut=self._cut)
        self._last = replace(self._end(chunk, reason), stopped_by=self._text.stopped_by)
        await self._stop()
        self._stats.seconds, self._stats.wasted = self._seconds, self._drafting.wasted
        self._telemetry.finish(self._stats, reason)
        return self._last

    def _cut(self) -> Chunk:
        return self._last or self._end(Chunk("", ()), "length")

    def _end(self, chunk: Chunk, reason: str) -> Chunk:
        self._stats.seconds, self._stats.cached_tokens = self._seconds, self._session.cached
        return chunk.finish(reason, self._stats, *self._text.end())

    async def aclose(self) -> None:
        """Give up what is under way, and count what it cost."""
        await self._stop()
        self._telemetry.reopened += self._session.reopened
        self._telemetry.wasted += self._drafting.wasted

    def _hear(self, prefill: Prefill) -> None:
        self._prompt += prefill.tokens

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    async def _event(self) -> Commit | Prefill | float:
        """See `watched`; from the draft model where it may answer."""
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
        """The text of what a relay has vetted, or was drafted while the server is away, and is not confirmed yet."""
        truth = self._truth
        drafted = self._provisional.ahead(truth) if self._provisional else ()
        vetted = truth.vetted if drafted or self._offline.shows_vetted else ()
        ahead = [*vetted, *[token.id for token in drafted]]
        return self._text.guess(ahead) if ahead else ""


def end_rules(info: ModelInfo, task: Task, truth: Truth) -> EndRules:
    """What ends a sequence of this target, as its server sees it."""
    params = task.params
    eos = frozenset() if params.ignore_eos else frozenset(info.eos_ids)
    last = min(truth.prompt_length + params.max_tokens, info.limits.context_length)
    return EndRules(eos, frozenset(params.stop_ids), last)
