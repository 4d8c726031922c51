"""Devices in this process that know the answers: drafts as right, wrong and late as a test wants, over real gRPC."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from edge_client.device.device import Device
from edge_client.drafters.base import Drafter, DrafterFactory
from edge_client.lengths.fixed import FixedLength
from edge_client.link.link import Endpoint, Link
from edge_client.link.remote import RetryPolicy
from opensled.core.answer import Stats, Task
from opensled.core.messages import DraftToken, Guide, ModelInfo, TokenLogprobs
from opensled.core.sampling import Sampler
from opensled.text.tokenizer import TargetTokenizer
from tests.vllm.answers import TINY, VOCABULARY, Answer

PATIENT = RetryPolicy(first_open=400.0, give_up=400.0)
TOKENIZER = TargetTokenizer((TINY / "tokenizer.json").read_bytes())


class Style(NamedTuple):
    """How devices draft."""

    right: float = 1.0  # share of the tokens
    late: Mapping[float, float] = {}  # seconds before a draft: share of the drafts
    length: int = 5
    cancelled: int = 0  # answers beside, whose readers leave after a few tokens


class Written(NamedTuple):
    """An answer as its reader has it."""

    ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprobs, ...]
    stats: Stats


class KnownFactory(DrafterFactory):
    """Drafts of one text."""

    name = "known"

    def __init__(self, text: Sequence[int], style: Style, seed: int) -> None:
        self._text, self._style, self._seed = text, style, seed

    def create(self) -> Drafter:
        return _Known(self._text, self._style, random.Random(self._seed))


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


def write(
    address: str, known: Sequence[Answer], style: Style = Style(), tokens: Sequence[str] = ("",)
) -> list[Written]:
    """All answers at once, each by a device of its own that knows it; `tokens`: of the tenants, who take turns."""
    return asyncio.run(_write(address, known, style, tokens))


async def _write(address: str, known: Sequence[Answer], style: Style, tokens: Sequence[str]) -> list[Written]:
    info = await describe(address, tokens[0])
    asked = [
        answered(address, info, answer, style, number, tokens[number % len(tokens)])
        for number, answer in enumerate(known)
    ]
    left = [
        answered(address, info, answer, style, 1000, tokens[0], most=4) for answer in known[: style.cancelled]
    ]
    return (await asyncio.gather(*asked, *left))[: len(known)]


async def describe(address: str, token: str = "") -> ModelInfo:
    """What the server says of its target."""
    link = Link(Endpoint(address, token=token, timeout=120.0))
    try:
        return await link.describe()
    finally:
        await link.close()


async def answered(
    address: str, info: ModelInfo, known: Answer, style: Style, seed: int, token: str = "", most: int = 0
) -> Written:
    """One answer, by a new device; `most`: tokens after which its reader leaves, 0 = it stays."""
    link = Link(Endpoint(address, token=token, timeout=120.0))
    factory = KnownFactory(known.text, style, seed)
    device = Device(link, info, TOKENIZER, factory, FixedLength(style.length), retry=PATIENT)
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
