"""Answers the requests of the HTTP API by sequences of this process: plain decoding, as for a device without drafts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from starlette.types import Scope

from http_api.backend import Answer
from opensled.core.answer import Chunk, Task
from opensled.core.bounds import check_open
from opensled.core.errors import InvalidRequest, Overloaded, Unreachable
from opensled.core.messages import MATCH, Failure, ModelInfo, Moved, Open, ServerMessage, is_chat
from opensled.core.penalties import require_served
from opensled.drafting.status import DraftStatus
from opensled.text.answer_text import AnswerText
from opensled.text.call_forms import call_marks
from opensled.text.thinking import reader_of
from opensled.text.tokenizer import TargetTokenizer
from opensled.wire import codec
from verify_server.front.client_guard import CALLER, Caller
from verify_server.front.local_answer import LocalAnswer
from verify_server.front.sequences import Sequences

RETRY_SECONDS = 0.1  # before a lost sequence is opened again; chosen
# There is no device, so there are no drafts.
STATUS = DraftStatus(False, "not drafting: this API is the server's own, and has no draft model")


class ServerBackend:
    """What the HTTP API asks (`http_api.backend.Backend`); the client is known by the request's scope."""

    server_away = writes_alone = False  # the target is in this process
    refusal = ""
    status = STATUS

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
    def unready(self) -> str:
        return self._sequences.unready

    def answering(self, scope: Scope) -> Answer:
        """How the client of a request is answered."""
        caller: Caller = scope[CALLER]

        def answer(task: Task) -> AsyncGenerator[Chunk, None]:
            return self._answer(caller, task)

        return answer

    async def _answer(self, caller: Caller, task: Task) -> AsyncGenerator[Chunk, None]:
        model = self._sequences.model()
        marks = call_marks(task.guide, model.info.calls)
        text = AnswerText(model.tokenizer, task.stop, model.info.eos_ids, marks)
        reads = partial(
            reader_of, model.info.thoughts, model.tokenizer, guide=task.guide, form=model.info.calls
        )
        is_read = is_chat(task.prompt)
        answer = LocalAnswer(self._open(task, model.info), text, time.monotonic(), reads if is_read else None)
        committed, heard_at = 0, time.monotonic()
        while True:
            try:
                async with (
                    aclosing(self._messages(caller, answer.opening)) as messages,
                    aclosing(answer.chunks(messages)) as chunks,
                ):
                    async for chunk in chunks:
                        yield chunk
                return
            except (Unreachable, Overloaded):
                if answer.committed > committed:
                    committed, heard_at = answer.committed, time.monotonic()
                if not committed or time.monotonic() - heard_at >= self._sequences.patience:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _messages(self, caller: Caller, opening: Open) -> AsyncGenerator[ServerMessage, None]:
        """What a sequence tells within the limits of its client; raises what ends it without an answer."""
        clients, client, pays = self._sequences.clients, caller.client, caller.pays()
        size = self._size(opening)
        with clients.stream(client) as account:
            if pays:
                await clients.call(client)
            if size > clients.limits.small_bytes:
                await account.large(size)
            async with aclosing(self._sequences.answer(client.tenant, opening, account)) as messages:
                async for message in messages:
                    account.end_opening()
                    yield _without_error(message)
        raise Unreachable("the server ended the sequence without an answer; ask again")

    def _size(self, opening: Open) -> int:
        """Bytes of an `Open` that came over a wire, whose bounds hold here, too; raises InvalidRequest."""
        encoded, most = codec.encode_client(opening), self._sequences.clients.limits.message_bytes
        size = encoded.ByteSize()
        if size > most:
            raise InvalidRequest(f"the content of the request is larger than {most >> 10} KiB")
        try:
            check_open(encoded.open, self.info.limits.context_length)
        except InvalidRequest as error:
            self._sequences.refused[error.code] += 1
            raise
        return size

    def _open(self, task: Task, info: ModelInfo) -> Open:
        require_served(task.params, info)
        return Open(
            prompt=task.prompt,
            images=task.images,
            params=task.params,
            rule=self.rule,
            model_id=info.model_id,
            fingerprint=info.fingerprint,
            top_logprobs=task.top_logprobs,
            prompt_logprobs=task.prompt_logprobs,
            guide=task.guide,
            pace=task.pace or 0.0,
            background=bool(task.background),
            template_variables=task.template_variables,
        )


def _without_error(message: ServerMessage) -> ServerMessage:
    if isinstance(message, Failure):
        raise message.error()
    if isinstance(message, Moved):
        raise Unreachable("the server is shutting down, and this answer did not end in time; ask again")
    return message
