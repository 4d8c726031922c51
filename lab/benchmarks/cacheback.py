"""Tables that draft: tokens per round with none, one and both of them, as chains and as trees."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from edge_client.device.device import Device
from edge_client.device.served_target import fetch_target
from edge_client.drafters import DRAFTERS, OFF
from edge_client.drafters.base import DrafterFactory, DrafterOptions
from edge_client.drafters.cacheback import PATTERN, CachebackDrafter, CachebackFactory
from edge_client.lengths.fixed import FixedLength
from edge_client.link.link import Endpoint, Link
from lab.benchmarks.draft_cost import LENGTH, MODEL, NODES, acceleration, draft_time
from lab.benchmarks.figure import Comparison, Figure
from lab.testbed.processes import Process
from lab.testbed.prompts import heldout, messages_of
from opensled.core.answer import Stats, Task
from opensled.core.errors import OpenSledError
from opensled.core.messages import MATCH, ChatMessage, Prompt, SamplingParams
from opensled.drafting import table_file
from opensled.drafting.followers import Followers
from opensled.drafting.tables import FrozenTable, LruTable, TableShape
from opensled.models.store import model_file

TURNS = 5  # commands and their answers before the one that is asked, in the repetitive task
SERVE = (
    "serve", "--model", "tiny", "--listen", "127.0.0.1:0", "--threads", "1", "--dtype", "float64",
    "--policy", "fcfs", "--draft-wait", "5",
)  # fmt: skip
STOPS = {"chain": FixedLength(LENGTH), "tree": FixedLength(LENGTH, tree=NODES)}
TREELESS = ("none", "model")  # contenders that draft no trees


class DraftedAnswer(NamedTuple):
    """An answer to one prompt."""

    tokens: tuple[int, ...]
    stats: Stats

    @property
    def per_round(self) -> float:
        """Tokens that a step of the target brought: a round, or a token it decoded where nothing was drafted."""
        return self.stats.completion_tokens / (self.stats.rounds + self.stats.server_decoded)


class FrozenFactory(CachebackFactory):
    """With the frozen table alone."""

    def create(self) -> CachebackDrafter:
        found = table_file.read(model_file(MODEL, PATTERN))
        return _FrozenDrafter(FrozenTable(found.rows, found.vocab_size))


class _FrozenDrafter(CachebackDrafter):
    def _forget(self) -> None:
        nothing = LruTable(TableShape(leaders=0))
        self._followers = Followers(nothing, self._frozen, self._ends, self._calibration)


def factories() -> dict[str, DrafterFactory]:
    """The contenders: tables that are there, and the draft model with and without them."""
    return {
        "none": DRAFTERS.get("none")(),
        "model": DRAFTERS.get("llamacpp")(MODEL, 1),
        "dynamic": CachebackFactory(MODEL, options=DrafterOptions(draft_table=OFF)),
        "frozen": FrozenFactory(MODEL),
        "dynamic + frozen": CachebackFactory(MODEL),
        "tables, then model": DRAFTERS.get("chain:cacheback,llamacpp")(MODEL, 1),
    }


def measure(quick: bool) -> Figure:
    """Every contender answers every prompt, one after the other; all must write the same."""
    count, max_tokens = (2, 24) if quick else (20, 96)
    tasks = {"repetitive": conversations(count), "code": code(count)}
    with Process(SERVE, isolated=True) as server:
        found = asyncio.run(_ask_all(server.wait_ready(), tasks, SamplingParams(0.0, max_tokens=max_tokens)))
    samples = {name: [each.per_round for each in asked] for name, asked in found.items()}
    texts = [asked.tokens for task in tasks for asked in found[f"{task}, none"]]
    return Figure(
        title="Drafts from tables",
        unit="tokens/round",
        more_is_better=True,
        compared=(
            "Tokens that a step of the target brings: of the real tiny target behind `opensled serve` on loopback, "
            f"greedy, for {count} prompts a task, one sample each. Repetitive: held-out smart-home commands after "
            f"{TURNS} others with their answers. Code: held-out functions of Python's standard library, raw and in "
            f"chats. Chains of at most {LENGTH} tokens, trees of at most {NODES}. The frozen table is the shipped one. "
            "All contenders wrote the same texts."
        ),
        loses="The draft model knows more of the tiny family's chats than tables do; it takes a pass for each token.",
        samples=samples,
        ratios=tuple(_ratios(tasks, found)),
        facts={
            "tokens per round over all prompts": {name: _overall(asked) for name, asked in found.items()},
            "draft time": draft_time(texts),
            "accelerated draft model": {
                task: acceleration([asked.tokens for asked in found[f"{task}, none"]]) for task in tasks
            },
        },
    )


def _ratios(tasks: Iterable[str], found: Mapping[str, list[DraftedAnswer]]) -> Iterable[Comparison]:
    pairs = (("dynamic", "none"), ("dynamic + frozen", "dynamic"), ("dynamic + frozen", "frozen"))
    for task in tasks:
        for shape in STOPS:
            for ours, against in pairs:
                names = [
                    f"{task}, none" if each == "none" else f"{task}, {each}, {shape}"
                    for each in (ours, against)
                ]
                if all(name in found for name in names):
                    yield Comparison(f"{task}, {shape}: {ours} against {against}", names[0], names[1])
        model, chain = f"{task}, model, chain", f"{task}, tables, then model, chain"
        yield Comparison(f"{task}: tables, then model against model", chain, model)


def _overall(asked: Sequence[DraftedAnswer]) -> float:
    """Of all answers together: long ones weigh more."""
    steps = sum(each.stats.rounds + each.stats.server_decoded for each in asked)
    return round(sum(each.stats.completion_tokens for each in asked) / steps, 3)


# -- prompts --------------------------------------------------------------------------------------------------


def _heldout(*tasks: str) -> list[dict[str, Any]]:
    return [item for item in heldout() if item["task"] in tasks]


def conversations(count: int) -> list[Prompt]:
    """Smart-home commands in the middle of a conversation of such commands."""
    found: list[Prompt] = []
    for number in range(count):
        *before, last = random.Random(number).sample(_heldout("smart_home"), TURNS + 1)
        turns = [ChatMessage("system", "You control a smart home. Answer with one JSON tool call.")]
        for item in before:
            turns += [
                ChatMessage("user", item["messages"][-1]["content"]),
                ChatMessage("assistant", item["answer"]),
            ]
        found.append((*turns, ChatMessage("user", last["messages"][-1]["content"])))
    return found


def code(count: int) -> list[Prompt]:
    """Functions to be continued, raw and in chats by turns."""
    raw, chats = _heldout("code"), _heldout("code_chat")
    found: list[Prompt] = []
    for number in range(count):
        item = (raw, chats)[number % 2][number // 2]
        found.append(messages_of(item.get("messages", [])) or item["prompt"])
    return found


# -- answers --------------------------------------------------------------------------------------------------


async def _ask_all(
    address: str, tasks: Mapping[str, Sequence[Prompt]], params: SamplingParams
) -> dict[str, list[DraftedAnswer]]:
    found: dict[str, list[DraftedAnswer]] = {}
    for name, factory in factories().items():
        for shape, stop in STOPS.items():
            if shape == "tree" and name in TREELESS:
                continue
            link = Link(Endpoint(address))
            target = await fetch_target(link, MATCH, factory, None)
            device = Device(link, target.info, target.tokenizer, factory, stop)
            try:
                for task, prompts in tasks.items():
                    series = f"{task}, none" if name == "none" else f"{task}, {name}, {shape}"
                    found[series] = [await ask(device, Task(prompt, params)) for prompt in prompts]
                    if [each.tokens for each in found[series]] != [
                        each.tokens for each in found[f"{task}, none"]
                    ]:
                        raise OpenSledError(f"drafts have changed an answer: {series}")
            finally:
                await device.close()
    return found


async def ask(device: Device, task: Task) -> DraftedAnswer:
    """The answer of a device, whole."""
    tokens: list[int] = []
    stats: Stats | None = None
    async with aclosing(device.answer(task)) as chunks:
        async for chunk in chunks:
            tokens += chunk.token_ids
            stats = chunk.stats or stats
    assert stats is not None, "the last chunk has the account"
    return DraftedAnswer(tuple(tokens), stats)
