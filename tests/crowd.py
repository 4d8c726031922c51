"""Users who ask one question after another, each on one device, while parts of the server are broken.

Real edge loops with real drafters over real gRPC, in one process. Every answer is kept, to be compared with the target
alone, and so is every time that an answer stood still because its server was lost.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edge_client.drafters.llamacpp import LlamaCppFactory
from edge_client.lengths.fixed import FixedLength
from edge_client.link.link import Endpoint, GrpcStream, Link
from edge_client.link.remote import RemoteSession
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from lab.testbed.prompts import TARGET, messages_of, prompts_of
from opensled.core.errors import OpenSledError
from opensled.core.messages import ChatMessage, ClientMessage, Open, SamplingParams
from opensled.models.store import model_path
from tests.loops import cancelled

if TYPE_CHECKING:
    from lab.testbed.reference import Reference

DRAFT = "tiny-draft"
BLOCK = 4  # draft tokens
LIVE = 8  # tokens that an answer has when it counts as under way


@dataclass(frozen=True)
class Question:
    """What is asked."""

    messages: tuple[ChatMessage, ...]
    params: SamplingParams


@dataclass(frozen=True)
class Resumption:
    """An answer that went on after its server was lost, or had sent it elsewhere."""

    seconds: float  # from the last token before to the first one after
    opens: int  # messages `Open` that it took: one for each round trip


@dataclass
class User:
    """One user with a device, and the answers received."""

    number: int
    link: Link
    asked: list[Question] = field(default_factory=list)
    told: list[tuple[int, ...]] = field(default_factory=list)  # whole answers
    errors: list[str] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)  # of each answer: the target's own, token for token
    resumptions: list[Resumption] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # of the answer under way
    opens: int = 0

    def connect(self, address: str = "") -> CountedStream:
        return CountedStream(self.link.connect(address), self)


class CountedStream:
    """A stream that tells its user of every `Open` it sends."""

    def __init__(self, stream: GrpcStream, user: User) -> None:
        self._stream, self._user = stream, user
        self.receive, self.close = stream.receive, stream.close

    async def send(self, message: ClientMessage) -> None:
        self._user.opens += isinstance(message, Open)
        await self._stream.send(message)


class Crowd:
    """So many users on one address; use it in an `async with`. They ask until `finish` is called."""

    def __init__(self, address: str, users: int, questions: Sequence[Question], **access: Any) -> None:
        """`access`: fields of `Endpoint`, such as the token."""
        self.users = [User(number, Link(Endpoint(address, **access))) for number in range(users)]
        self._questions, self._enough = questions, False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Crowd:
        factory = LlamaCppFactory(DRAFT, 1)
        drafters = [await asyncio.to_thread(factory.create) for _ in self.users]
        self._threads = [DraftThread(drafter, FixedLength(BLOCK)) for drafter in drafters]
        self._tasks = [
            asyncio.create_task(self._ask(user, thread)) for user, thread in zip(self.users, self._threads)
        ]
        return self

    async def __aexit__(self, *exception: object) -> None:
        await cancelled(*self._tasks)
        for thread in self._threads:
            thread.close()
        await asyncio.gather(*(user.link.close() for user in self.users))

    async def live(self) -> None:
        """Until every user is in mid-answer at the same time; raises what ended a user's asking."""
        await self._until(lambda: all(len(user.tokens) >= LIVE for user in self.users))

    async def another_answer(self) -> None:
        """Until every user has begun an answer after now, and has got all of it."""
        enough = [len(user.told) + 2 for user in self.users]
        await self._until(lambda: all(len(user.told) >= count for user, count in zip(self.users, enough)))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.005)

    def stop_asking(self) -> None:
        """No user begins another answer."""
        self._enough = True

    async def finish(self) -> None:
        """Wait for the rest of all answers."""
        self.stop_asking()
        await asyncio.gather(*self._tasks)

    async def _ask(self, user: User, thread: DraftThread) -> None:
        while not self._enough:
            question = self._questions[(user.number + len(user.asked)) % len(self._questions)]
            user.asked.append(question)
            user.tokens = []
            try:
                await _listen(user, question, thread)
            except OpenSledError as error:
                user.errors.append(f"{error.code}: {error}")
            user.told.append(tuple(user.tokens))


async def _listen(user: User, question: Question, thread: DraftThread) -> None:
    session = RemoteSession(
        user.connect, Open(question.messages, question.params, device=f"user-{user.number}")
    )
    await session.open()
    reopened, opens, latest = 0, user.opens, time.monotonic()
    async for commit in generate(session, thread, question.params):
        now = time.monotonic()
        if session.reopened > reopened:
            user.resumptions.append(Resumption(now - latest, user.opens - opens))
            reopened = session.reopened
        opens, latest = user.opens, now
        user.tokens.extend(commit.tokens)


def questions(count: int, max_tokens: int, seed: int = 0) -> list[Question]:
    """Chats of different tasks, greedy and sampled. Answers go on to `max_tokens`, so that all of them last."""
    bodies = [prompts_of(number, 2, max_tokens, seed)[number % 2] for number in range(count)]
    return [_question(body) for body in bodies]


def _question(body: Mapping[str, Any]) -> Question:
    sampling = {"temperature": body["temperature"], "seed": body.get("seed")}
    return Question(
        messages_of(body["messages"]),
        SamplingParams(**sampling, max_tokens=body["max_tokens"], ignore_eos=True),
    )


def judge(users: Sequence[User]) -> None:
    """Let plain transformers, in float64, say of every answer whether each token of it is what the target writes."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # so small a model gains nothing by threads
    from lab.testbed.reference import Reference

    reference = Reference(model_path(TARGET), dtype="float64")
    known: dict[tuple[Question, tuple[int, ...]], bool] = {}
    for user in users:
        for given in zip(user.asked, user.told):
            if given not in known:
                known[given] = _is_right(reference, *given)
        user.right = [known[given] for given in zip(user.asked, user.told)]


def _is_right(reference: Reference, question: Question, told: Sequence[int]) -> bool:
    """By teacher forcing: one forward pass for the whole answer."""
    from lab.testbed.reference import Sampling, key_of_seed

    params = question.params
    if len(told) != params.max_tokens:
        return False
    key = b"" if params.seed is None else key_of_seed(params.seed)
    prompt = reference.render_chat(
        [{"role": turn.role, "content": turn.content} for turn in question.messages]
    )
    leads = reference.leads(prompt, told, Sampling(params.temperature, key=key))
    return [lead.winner for lead in leads] == list(told)
