"""Answers the requests of the HTTP API by sequences of this process: plain decoding, as for a device without drafts."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from starlette.types import Scope

from http_api.backend import Answer
from opensled.answer import Chunk, Origin, Stats, Task
from opensled.answer_text import AnswerText
from opensled.errors import ProtocolError
from opensled.messages import MATCH, ModelInfo, Open, Opened, Verdict
from opensled.penalties import require_served
from opensled.protocol import Truth
from opensled.tokenizer import TargetTokenizer
from verify_server.http_front.client_guard import CALLER, Caller
from verify_server.http_front.sequences import Sequences
from verify_server.local_call import LocalCall, local_call

SERVER: Origin = "server"


@dataclass(frozen=True)
class PlainStatus:
    """There is no device, so there are no drafts; the fields are those of a device's status."""

    drafting: bool = False
    words: str = "not drafting: this API is the server's own, and has no draft model"
    length: int = 0
    expected_rate: float | None = None
    server_rate: float | None = None
    token_seconds: float | None = None
    acceptance: float | None = None

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class ServerBackend:
    """What the HTTP API asks (`http_api.backend.Backend`); the client is known by the request's scope."""

    server_away = False  # it is this process
    status = PlainStatus()

    def __init__(self, sequences: Sequences) -> None:
        self._sequences = sequences

    @property
    def info(self) -> ModelInfo:
        return self._sequences.model().info

    @property
    def tokenizer(self) -> TargetTokenizer:
        return self._sequences.model().tokenizer

    @property
    def rule(self) -> str:
        """Without drafts all rules write the same."""
        info = self.info
        return MATCH if info.serves(MATCH) else info.rule_names[0]

    @property
    def ready(self) -> bool:
        return self._sequences.takes_more

    def answering(self, scope: Scope) -> Answer:
        """How the client of a request is answered."""
        caller: Caller = scope[CALLER]

        def answer(task: Task) -> AsyncGenerator[Chunk, None]:
            return self._answer(caller, task)

        return answer

    async def _answer(self, caller: Caller, task: Task) -> AsyncGenerator[Chunk, None]:
        sequences, started = self._sequences, time.monotonic()
        model = sequences.model()
        opening = self._open(task, model.info)
        call = local_call(
            sequences.clients, caller.client, opening, sequences.linger, sequences.serve, not caller.pays()
        )
        text = AnswerText(model.tokenizer, task.stop)
        async with call as stream, aclosing(_chunks(stream, text, started)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _open(self, task: Task, info: ModelInfo) -> Open:
        require_served(task.params, info)
        return Open(
            prompt=task.prompt,
            params=task.params,
            rule=self.rule,
            model_id=info.model_id,
            fingerprint=info.fingerprint,
            top_logprobs=task.top_logprobs,
            guide=task.guide,
            pace=task.pace or 0.0,
            background=bool(task.background),
        )


async def _chunks(call: LocalCall, text: AnswerText, started: float) -> AsyncGenerator[Chunk, None]:
    """One answer, as it is committed; `started` on the monotonic clock."""
    opened = await call.receive()
    if not isinstance(opened, Opened):
        raise ProtocolError("the server did not open the sequence; see its log")
    truth = Truth(opened.prompt_ids)
    stats = Stats(prompt_tokens=len(truth), completion_tokens=0)
    reason = ""
    while not reason:
        verdict = await call.receive()
        if not isinstance(verdict, Verdict):
            continue
        news = truth.extend(verdict) or ()
        tokens, shown = text.commit(news)
        if tokens and not stats.completion_tokens:
            stats.first_token = time.monotonic() - started
        stats.completion_tokens += len(tokens)
        stats.server_decoded += len(tokens)
        reason = "stop" if text.stopped else truth.finish_reason
        logprobs = verdict.logprobs[-len(news) :][: len(tokens)] if news else ()
        if reason:
            stats.seconds = time.monotonic() - started
            shown += text.flush()
        origins = (SERVER,) * len(tokens)
        yield Chunk(shown, tokens, reason or None, stats if reason else None, origins, logprobs)
