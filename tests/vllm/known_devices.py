"""Devices in this process that know the answers: drafts as right, wrong and late as a test wants, over real gRPC."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from edge_client.device.device import Device
from edge_client.device.request_defaults import RequestDefaults
from edge_client.drafters.base import Drafter, DrafterFactory
from edge_client.lengths.fixed import FixedLength
from edge_client.link.link import Endpoint, Link
from edge_client.link.remote import RetryPolicy
from opensled.core.answer import Stats, Task
from opensled.core.messages import DraftToken, Guide, ModelInfo, TokenLogprobs
from opensled.core.sampling import Sampler
from opensled.text.tokenizer import TargetTokenizer
from tests.text_pairs import by_text, spelled
from tests.vllm.answers import TINY, VOCABULARY, Answer, assert_close_logprobs

PATIENT = RetryPolicy(first_open=400.0, give_up=400.0)
TOKENIZER = TargetTokenizer((TINY / "tokenizer.json").read_bytes())


class Style(NamedTuple):
    """How devices draft."""

    right: float = 1.0  # share of the tokens
    late: Mapping[float, float] = {}  # seconds before a draft: share of the drafts
    length: int = 5
    cancelled: int = 0  # answers beside, whose readers leave after a few tokens
    by_text: bool = False  # by a draft model of another vocabulary


STYLES = {
    "none": Style(length=0),
    "right": Style(),
    "wrong": Style(right=0.0),
    "60 % right, late, readers leave": Style(right=0.6, late={0.02: 0.3, 0.7: 0.05}, cancelled=6),
    "long, 90 % right": Style(right=0.9, length=16),
    "by text": Style(by_text=True),
}


class Written(NamedTuple):
    """An answer as its reader has it."""

    ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprobs, ...]
    stats: Stats

    def assert_same(self, known: Answer) -> None:
        assert (list(self.ids), self.finish_reason) == (known.text, known.finish_reason)
        assert_close_logprobs(self.logprobs, known.logprobs)


class KnownFactory(DrafterFactory):
    """Drafts of one text."""

    name = "known"

    def __init__(self, known: Answer, style: Style, seed: int) -> None:
        self._known, self._style, self._seed = known, style, seed

    def create(self) -> Drafter:
        if self._style.by_text:
            return by_text("tiny", "llama2", spelled("tiny", self._known.tokens))
        return _Known(self._known.text, self._style, random.Random(self._seed))


class _Known(Drafter):
    def __init__(self, text: Sequence[int], style: Style, chance: random.Random) -> None:
        self._text, self._style, self._random, self._done, self._start = text, style, chance, 0, 0

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._done = 0

    def propose(self) -> Iterator[DraftToken]:
        drawn = self._random.random()
        for seconds, share in self._style.late.items():
            if 0 <= drawn < share:
                time.sleep(seconds)
            drawn -= share
        for id in self._text[self._done :]:
            is_right = self._random.random() < self._style.right
            yield DraftToken(id if is_right else self._random.randrange(VOCABULARY), 0.9)

    def commit(self, tokens: Sequence[int]) -> None:
        self._done += len(tokens)


def task_of(answer: Answer) -> Task:
    """The same answer, as a reader asks for it."""
    params = replace(answer.params, max_tokens=answer.length)
    guide = Guide(json_schema=answer.schema) if answer.schema else None
    return Task(answer.prompt, params, guide=guide, top_logprobs=answer.top_logprobs)


def write(server: Endpoint, known: Sequence[Answer], style: Style = Style()) -> list[Written]:
    """All answers at once, each by a device of its own that knows it."""
    return asyncio.run(_write(server, known, style))


async def _write(server: Endpoint, known: Sequence[Answer], style: Style) -> list[Written]:
    info = await describe(server)
    asked = [answered(server, info, answer, style, number) for number, answer in enumerate(known)]
    return await asyncio.gather(*asked)


async def describe(server: Endpoint) -> ModelInfo:
    """What the server says of its target."""
    link = Link(server)
    try:
        return await link.describe()
    finally:
        await link.close()


async def answered(
    server: Endpoint, info: ModelInfo, known: Answer, style: Style, seed: int, most: int = 0
) -> Written:
    """One answer, by a new device; `most`: tokens after which its reader leaves, 0 = it stays."""
    link = Link(server)
    factory = KnownFactory(known, style, seed)
    # The server remembers under its name how its drafts are accepted: each has one of its own.
    named = RequestDefaults(device=uuid.uuid4().hex)
    lengths = FixedLength(style.length)
    device = Device(link, info, TOKENIZER, factory, lengths, retry=PATIENT, defaults=named)
    ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    try:
        async with aclosing(device.answer(task_of(known))) as chunks:
            async for chunk in chunks:
                ids += chunk.token_ids
                logprobs += chunk.logprobs
                if most and len(ids) >= most:
                    break
    finally:
        await device.close()
    return Written(tuple(ids), chunk.finish_reason or "", tuple(logprobs), chunk.stats or Stats(0, 0))
