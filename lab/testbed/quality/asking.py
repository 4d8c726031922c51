"""Asks every item under all rules, one rule after another, `users` items at a time."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from edge_client.device.device import Device
from lab.testbed.quality.config import QualityConfig
from lab.testbed.quality.items import fresh_items, in_turn
from lab.training.item import Item, Task
from opensled.core.answer import Chunk, Stats
from opensled.core.answer import Task as Request
from opensled.core.messages import ChatMessage, Prompt, SamplingParams
from opensled.process.logs import tell
from opensled.text.answer_text import TextStream
from opensled.text.tokenizer import TargetTokenizer

# Between the seeds of two runs, so that no item of one samples like an item of the other.
SEEDS_APART = 1_000_003


@dataclass(frozen=True)
class Reply:
    """One answer under one rule."""

    rule: str  # with all its options, as the server names it
    pieces: tuple[tuple[str, bool], ...]  # the text, token by token, and whether the token is a loose one
    right: bool
    ids: tuple[int, ...]
    nats: float  # negative log-likelihood of all tokens under the target
    loose: int  # tokens that are not the target's own
    rounds: int
    round_tokens: int  # committed by those rounds
    seconds: float  # from the request to the last token

    @property
    def text(self) -> str:
        return "".join(piece for piece, _ in self.pieces)


@dataclass(frozen=True)
class Asked:
    """One item with its answers by rule."""

    item: Item
    replies: Mapping[str, Reply]


class Kept(Protocol):
    """Answers of a run that outlive it; kept.py has them in files."""

    def get(self, task: str, number: int, item: Item) -> Asked | None:
        """What was answered to that question; None = nothing."""

    def keep(self, task: str, number: int, asked: Asked) -> None:
        """Let it outlive the run."""


class Asking:
    """The questions of one run."""

    def __init__(self, config: QualityConfig, devices: Mapping[str, Device], kept: Kept) -> None:
        """`kept`: answers that there are already; the new ones go there."""
        self._config, self._devices, self._kept = config, devices, kept
        self._free = asyncio.Semaphore(config.users)

    async def of_task(self, task: Task) -> list[Asked]:
        """All items of a task. The first error ends it."""
        started, items = time.monotonic(), fresh_items(task, self._config.items, self._config.seed)
        asking = [asyncio.ensure_future(self._item(task, *each)) for each in enumerate(items)]
        try:
            found = await asyncio.gather(*asking)
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        tell(f"{task.name}: {len(items)} items asked in {time.monotonic() - started:.0f} s")
        return found

    async def _item(self, task: Task, index: int, item: Item) -> Asked:
        if (known := self._kept.get(task.name, index, item)) is not None:
            return known
        async with self._free:
            rules = in_turn(list(self._devices), index)
            request = self._request(item, index)
            short = replace(request, params=replace(request.params, max_tokens=1))
            await heard(self._devices[rules[0]], short)  # its prompt is in the server's cache from here on
            replies = {rule: await self._reply(task, item, self._devices[rule], request) for rule in rules}
        asked = Asked(item, replies)
        self._kept.keep(task.name, index, asked)
        return asked

    def _request(self, item: Item, index: int) -> Request:
        seed = self._config.seed * SEEDS_APART + index
        params = SamplingParams(
            temperature=self._config.temperature, max_tokens=self._config.max_tokens, seed=seed
        )
        return Request(prompt_of(item), params, top_logprobs=0)

    async def _reply(self, task: Task, item: Item, device: Device, request: Request) -> Reply:
        assert task.check, "only such tasks are asked"
        chunks = await heard(device, request)
        text = "".join(chunk.text for chunk in chunks)
        return reply_of(chunks, device.tokenizer, task.check(text, item.answer or ""))


async def heard(device: Device, request: Request) -> list[Chunk]:
    """The whole answer."""
    async with aclosing(device.answer(request)) as chunks:
        return [chunk async for chunk in chunks]


def prompt_of(item: Item) -> Prompt:
    if not item.chat:
        return item.text
    return tuple(ChatMessage(turn["role"], turn["content"]) for turn in item.messages)


def reply_of(chunks: Sequence[Chunk], tokenizer: TargetTokenizer, right: bool) -> Reply:
    ids = tuple(id for chunk in chunks for id in chunk.token_ids)
    loose = [origin == "loose" for chunk in chunks for origin in chunk.origins]
    own = [likeliest[0][1] for chunk in chunks for likeliest in chunk.logprobs]
    stats = chunks[-1].stats or Stats(0, 0)
    return Reply(
        rule=stats.rule,
        pieces=pieces_of(tokenizer, ids, loose),
        right=right,
        ids=ids,
        nats=-sum(own),
        loose=sum(loose),
        rounds=stats.rounds,
        round_tokens=stats.round_tokens,
        seconds=stats.seconds,
    )


def pieces_of(
    tokenizer: TargetTokenizer, ids: Sequence[int], loose: Sequence[bool]
) -> tuple[tuple[str, bool], ...]:
    """The text of each token with its mark; a character of several tokens belongs to the last of them."""
    stream = TextStream(tokenizer)
    pieces = [(stream.push([id]), mark) for id, mark in zip(ids, loose, strict=True)]
    return (*pieces, (stream.flush(), False))
