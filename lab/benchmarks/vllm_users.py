"""The users of `vllm_engine`: they read vLLM's API, or have this product's devices, with replayed drafts or none."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import httpx

from edge_client.link.link import Endpoint, Link
from edge_client.round.draft_job import BlockBudget, Drafted
from lab.benchmarks.gpu.replay import DeviceReplay
from lab.benchmarks.vllm_servers import NAME, START_S
from lab.testbed.client import StreamedReply, stream_completion
from lab.testbed.emulation.replay import NoDrafts
from lab.testbed.fleet import Group, Wish
from lab.testbed.load.device_drafts import CountedDrafting
from lab.testbed.load.load import Item
from lab.testbed.load.load_device import LoadDevice
from lab.testbed.load.records import Clock, RequestRecord
from lab.testbed.rules import rule_of
from lab.testbed.traces import WHOLE, ItemTrace, Proposal
from opensled.core.errors import OpenSledError
from opensled.core.protocol import Truth, common_prefix

GROUP = Group(drafter="lookup", draft_model="", draft_length=WHOLE, stop="hint")


class User(NamedTuple):
    """One question."""

    kind: str
    prompt: tuple[int, ...]
    tokens: int  # of the answer


class Heard(NamedTuple):
    """What users who asked at the same time read."""

    texts: list[tuple[int, ...]]  # [] over HTTP
    tokens: int
    seconds: float  # from the first question to the last token
    first_s: list[float]  # of each user, to the first token
    drafted: int = 0
    accepted: int = 0


class Recordings:
    """What was written on each prompt, the first text before the others."""

    def __init__(self) -> None:
        self._texts: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}

    def add(self, prompt: tuple[int, ...], text: tuple[int, ...]) -> None:
        self._texts.setdefault(prompt, {})[text] = None

    def first(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        return next(iter(self._texts[prompt]))

    def traces(self, user: User, share: float) -> list[ItemTrace]:
        return [_trace(user, text, share) for text in self._texts[user.prompt]]


def _trace(user: User, text: tuple[int, ...], share: float) -> ItemTrace:
    """What a device drafts at each place of a text; which tokens are wrong depends on the place alone."""
    draw = random.Random(f"device {user.prompt} {share}")
    ids = [token if draw.random() < share else token ^ 1 for token in text]
    proposals = tuple(
        Proposal(tuple(ids[place : place + WHOLE]), (share,) * len(ids[place : place + WHOLE]))
        for place in range(len(ids))
    )
    return ItemTrace(user.kind, user.prompt, text, "length", proposals)


class Replayed(DeviceReplay):
    """Drafts from the one of several recordings that fits the text best."""

    def __init__(self, traces: Sequence[ItemTrace]) -> None:
        super().__init__({trace.prompt_ids: trace for trace in traces}, None, rule_of(GROUP))
        self._all = traces

    def draft(self, truth: Truth, budget: BlockBudget) -> asyncio.Future[Drafted]:
        """See `Drafting`."""
        self._model.trace = self.fitting(truth.generated)
        return super().draft(truth, budget)

    def fitting(self, text: Sequence[int]) -> ItemTrace:
        """The one that agrees longest with a text."""
        return max(self._all, key=lambda trace: common_prefix(trace.target_ids, text))


class _Ids:
    """Stands for a tokenizer: texts are compared by their ids."""

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def by_devices(address: str, users: Sequence[User], share: float, recordings: Recordings) -> Heard:
    """All users ask at the same time, each with a device. `share`: of the draft tokens that are right, 0 = no drafts.
    Raises OpenSledError."""
    return asyncio.run(_by_devices(address, users, share, recordings))


async def _by_devices(address: str, users: Sequence[User], share: float, recordings: Recordings) -> Heard:
    clock = Clock()
    async with AsyncExitStack() as stack:
        link = Link(Endpoint(address, timeout=START_S, connect=START_S))
        stack.push_async_callback(link.close)
        await link.describe()  # the connection is not what is measured
        devices = []
        for place, user in enumerate(users):
            drafting: CountedDrafting = Replayed(recordings.traces(user, share)) if share else NoDrafts()
            wish = Wish(f"device-{place}-{share}")  # by which the server knows it again in the next turn
            device = LoadDevice(link.connect, drafting, _Ids(), clock, traces={}, wish=wish)  # type: ignore[arg-type]
            stack.push_async_callback(device.close)
            devices.append(device)
        records = [RequestRecord(number, 0, user.kind, clock.now()) for number, user in enumerate(users)]
        started = clock.now()
        await asyncio.gather(
            *(device.ask(_item(user), record) for device, user, record in zip(devices, users, records))
        )
        return _heard(records, started)


def _item(user: User) -> Item:
    return Item(user.kind, user.prompt, user.tokens, ignore_eos=True)


def _heard(records: Sequence[RequestRecord], started: float) -> Heard:
    rounds = [each for record in records for each in record.rounds]
    return Heard(
        texts=[tuple(map(int, record.text.split())) for record in records],
        tokens=sum(record.tokens for record in records),
        seconds=max(record.arrivals[-1].time for record in records) - started,
        first_s=[record.arrivals[0].time - started for record in records],
        drafted=sum(each.drafted for each in rounds),
        accepted=sum(each.accepted for each in rounds),
    )


def by_http(url: str, users: Sequence[User]) -> Heard:
    """All users ask at the same time, each on its own connection to an OpenAI API. Raises OpenSledError."""
    return asyncio.run(_by_http(url, users))


async def _by_http(url: str, users: Sequence[User]) -> Heard:
    async with httpx.AsyncClient(base_url=url, timeout=START_S, trust_env=False) as http:
        await http.get("/v1/models")  # the connection is not what is measured
        started = time.monotonic()
        found = await asyncio.gather(*(_read(http, user, started) for user in users))
    replies = [reply for reply, _, _ in found]
    if lacking := [reply for reply in replies if not reply.usage]:
        raise OpenSledError(f"{url}: {len(lacking)} answers without a number of tokens")
    return Heard(
        texts=[],
        tokens=sum(reply.usage["completion_tokens"] for reply in replies),
        seconds=max(end for _, _, end in found) - started,
        first_s=[first for _, first, _ in found],
    )


async def _read(http: httpx.AsyncClient, user: User, started: float) -> tuple[StreamedReply, float, float]:
    """The answer, seconds to its first token, and when the last one came."""
    body = {"model": NAME, "prompt": list(user.prompt), "max_tokens": user.tokens, "temperature": 0}
    first, reply = 0.0, StreamedReply()
    async for grown in stream_completion(http, {**body, "ignore_eos": True}):
        first, reply = first or time.monotonic() - started, grown
    return reply, first, time.monotonic()
