"""The words of one answer: from what the server commits to what its reader gets, also while no server answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from edge_client.answer import Chunk, Stats, Task
from edge_client.drafting import Drafting, DraftThread
from edge_client.generate import Commit, generate
from edge_client.offline.absence import LOCAL_ONLY, PROVISIONAL, Offline
from edge_client.offline.going_on import GoingOn, OutageWatch
from edge_client.offline.local_only import LocalCommit, alone, require_possible
from edge_client.remote import RemoteSession
from edge_client.telemetry import AnswerMetrics
from edge_client.tokenizer import AnswerText, EdgeTokenizer
from opensled.errors import Unreachable
from opensled.messages import ModelInfo
from opensled.protocol import EndRules, Truth


class AnswerStream:
    """One answer under way on a device."""

    def __init__(
        self,
        session: RemoteSession,
        drafter: DraftThread,
        task: Task,
        info: ModelInfo,
        tokenizer: EdgeTokenizer,
        offline: Offline,
    ) -> None:
        """`session`: open, or with a prompt and a noise key of the device's own."""
        self._session, self._thread, self._task, self._offline = session, drafter, task, offline
        self._truth: Truth = session.truth
        self._text = AnswerText(tokenizer, task.stop)
        self._ends = end_rules(info, task, self._truth)
        goes_on = offline.mode == PROVISIONAL and drafter.drafts
        self._going_on = GoingOn(drafter, self._ends, offline.most) if goes_on else None
        self.drafter: Drafting = self._going_on or drafter

    async def chunks(self, opened: bool, account: AnswerMetrics) -> AsyncGenerator[Chunk, None]:
        """The answer; the last chunk carries the finish reason and the statistics. `opened`: by a server."""
        stats = Stats(prompt_tokens=len(self._truth), completion_tokens=0)
        chunk = Chunk("", ())
        async with aclosing(self._events(opened)) as events:
            async for event in events:
                if isinstance(event, float):
                    yield Chunk("", (), waiting=event, provisional=self._guess())
                    continue
                chunk = self._chunk(event)
                stats = count(stats, event, len(chunk.token_ids))
                account.commit(event, len(chunk.token_ids))
                if self._text.stopped or self._truth.finish_reason:
                    break
                yield chunk
        reason = "stop" if self._text.stopped else self._truth.finish_reason
        account.finish(reason)
        stats = replace(stats, seconds=account.seconds, wasted=self.drafter.wasted)
        text = chunk.text + self._text.flush()
        yield replace(chunk, text=text, finish_reason=reason, stats=stats, provisional="")

    async def _events(self, opened: bool) -> AsyncGenerator[Commit | float, None]:
        """Commits, and for how many seconds the server is away; then the draft model's own, where it may answer."""
        session, params = self._session, self._task.params
        if opened:
            try:
                words = generate(session, self.drafter, params)
                watch = OutageWatch(words, session, self._offline, self._going_on)
                async with aclosing(words), aclosing(watch.events()) as events:
                    async for event in events:
                        yield event
                return
            except Unreachable as error:
                if self._offline.mode != LOCAL_ONLY:
                    raise
                require_possible(self._task, error)
        local = alone(self._thread, self._truth, params, session.noise_key, self._ends)
        async with aclosing(local) as commits:
            async for commit in commits:
                yield commit

    def _chunk(self, commit: Commit) -> Chunk:
        tokens, shown = self._text.push(commit.tokens)
        return Chunk(
            shown,
            tokens,
            logprobs=commit.logprobs[: len(tokens)],
            origins=commit.origins[: len(tokens)],
            provisional=self._guess(),
        )

    def _guess(self) -> str:
        """The text of what was drafted while the server was away, and is not verified yet."""
        ahead = self._going_on.ahead(self._truth) if self._going_on else ()
        return self._text.guess([token.id for token in ahead])


def count(stats: Stats, commit: Commit, tokens: int) -> Stats:
    """`stats` with a commit of which `tokens` tokens belong to the answer."""
    stats = replace(stats, completion_tokens=stats.completion_tokens + tokens)
    if isinstance(commit, LocalCommit):
        return replace(stats, local_tokens=stats.local_tokens + tokens)
    if not commit.drafted:
        return replace(stats, server_decoded=stats.server_decoded + tokens)
    return replace(
        stats,
        rounds=stats.rounds + 1,
        drafted=stats.drafted + commit.drafted,
        accepted=stats.accepted + min(commit.accepted, tokens),
        round_tokens=stats.round_tokens + tokens,
    )


def end_rules(info: ModelInfo, task: Task, truth: Truth) -> EndRules:
    """What ends a sequence of this target, as its server sees it."""
    params = task.params
    eos = frozenset() if params.ignore_eos else frozenset(info.eos_ids)
    last = min(truth.prompt_length + params.max_tokens, info.limits.context_length)
    return EndRules(eos, frozenset(params.stop_ids), last)
