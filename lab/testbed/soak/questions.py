"""What the fleet of a soak asks, and the truth: what each target alone answers, taken before anything is broken."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from edge_client.link.link import Endpoint, Link
from edge_client.link.remote import RemoteSession, RetryPolicy
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from http_api.chat_messages import read_turns
from lab.testbed.prompts import prompts_of
from opensled.core.answer import Task
from opensled.core.errors import Unreachable
from opensled.core.images import ImageFacts
from opensled.core.messages import ModelInfo, Open, SamplingParams
from opensled.text.tokenizer import TargetTokenizer

READY_S = 120.0  # for a target that listens already
PATIENT = RetryPolicy(first_open=READY_S)
LONGEST = 120  # tokens of an answer; stories end there, tool calls long before


@dataclass(frozen=True)
class Question:
    """An OpenAI request body, as prompts.py makes it: temperature 0, or a temperature and a seed."""

    body: dict[str, Any]

    @property
    def key(self) -> str:
        """Its body as text."""
        return json.dumps(self.body, sort_keys=True)

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.body["temperature"],
            seed=self.body.get("seed"),
            max_tokens=self.body["max_tokens"],
        )

    def opening(self, device: str = "") -> Open:
        """The message that asks it."""
        task = Task(read_turns(self.body["messages"], ImageFacts(0, 1)), self.params)
        return Open(task.prompt, task.params, device=device, images=task.images)


@dataclass(frozen=True)
class Truth:
    """What the target alone answers."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    finish_reason: str
    text: str


@dataclass(frozen=True)
class Course:
    """The questions to one target, their truths in the same order, and what the target says of itself."""

    questions: Sequence[Question]
    truths: Sequence[Truth]
    info: ModelInfo


def questions(count: int, seed: int) -> list[Question]:
    """Chats of different tasks; every other one is greedy, the rest sample by a seed."""
    bodies = [prompts_of(number, 2, LONGEST, seed)[number % 2] for number in range(count)]
    return [Question(body) for body in bodies]


async def course_of(address: str, token: str, asked: Sequence[Question]) -> Course:
    """Ask the target at `address` one question after another, without drafts and with nothing beside it."""
    link = Link(Endpoint(address, token))
    thread = DraftThread(NoneDrafter(), FixedLength(0))
    try:
        info = await _described(link)
        tokenizer = TargetTokenizer(await link.tokenizer_json())
        return Course(asked, [await _truth(link, thread, each, tokenizer) for each in asked], info)
    finally:
        thread.close()
        await link.close()


async def _described(link: Link) -> ModelInfo:
    """What the target says of itself; a gateway may not have heard of its replicas yet."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            return await link.describe()
        except Unreachable:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)


async def _truth(link: Link, thread: DraftThread, question: Question, tokenizer: TargetTokenizer) -> Truth:
    session = RemoteSession(link.connect, question.opening(), PATIENT)
    await session.open()
    async with aclosing(generate(session, thread, question.params)) as commits:
        async for _ in commits:
            continue
    truth = session.truth
    prompt = tuple(truth.tokens[: truth.prompt_length])
    return Truth(prompt, truth.generated, truth.finish_reason, tokenizer.decode(truth.generated))
