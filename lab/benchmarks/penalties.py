"""Penalties and min_p: how often drafts stand whose model applies them, against drafts whose model ignores them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from edge_client.device.device import Device
from edge_client.device.served_target import fetch_target
from edge_client.drafters.base import DrafterFactory
from edge_client.drafters.llamacpp import LlamaCppDrafter, LlamaCppFactory
from edge_client.lengths.fixed import FixedLength
from edge_client.link.link import Endpoint, Link
from lab.benchmarks.cacheback import DraftedAnswer, ask
from lab.benchmarks.figure import Comparison, Figure
from lab.testbed.processes import Process
from lab.testbed.prompts import heldout, messages_of
from opensled.core.answer import Task
from opensled.core.errors import OpenSledError
from opensled.core.messages import MATCH, ChatMessage, Prompt, SamplingParams
from opensled.core.penalties import NAMES, PLAIN
from opensled.core.sampling import Sampler
from opensled.models.store import cache_folder, known_models

PROMPTS = Path(__file__).with_name("real_prompts.json")
KINDS = ("chat", "questions", "arithmetic", "translation")
TASKS = ("arithmetic", "code_chat", "smart_home", "chat")
LENGTH = 4  # of a draft
CASES: Mapping[str, SamplingParams] = {
    "repetition 1.2, T=0": SamplingParams(0.0, repetition_penalty=1.2),
    "presence and frequency 0.5, T=0": SamplingParams(0.0, presence_penalty=0.5, frequency_penalty=0.5),
    "presence and frequency 0.5, T=0.8": SamplingParams(
        0.8, presence_penalty=0.5, frequency_penalty=0.5, seed=1
    ),
    "min_p 0.1, T=1": SamplingParams(1.0, min_p=0.1, seed=1),
}
COUNTING, IGNORING = "applied", "ignored"


class Pair(NamedTuple):
    """A target and the model that drafts for it."""

    target: str
    draft: str
    prompts: Sequence[Prompt]


class IgnoringFactory(LlamaCppFactory):
    """Its model knows nothing of penalties and min_p."""

    def create_model(self) -> LlamaCppDrafter:
        drafter = super().create_model()
        begin = drafter.begin
        drafter.begin = lambda prompt, sampler: begin(prompt, _without(sampler))  # type: ignore[method-assign]
        return drafter


def _without(sampler: Sampler) -> Sampler:
    off = {name: getattr(PLAIN, name) for name in NAMES}
    return replace(sampler, params=replace(sampler.params, **off))


FACTORIES: Mapping[str, type[LlamaCppFactory]] = {COUNTING: LlamaCppFactory, IGNORING: IgnoringFactory}


def pairs(count: int) -> Iterator[Pair]:
    """The tiny family; SmolLM2 and its own 4-bit file, where it was fetched. `count`: prompts of each kind."""
    tiny = [messages_of(item["messages"]) for task in TASKS for item in _heldout(task)[:count]]
    yield Pair("tiny", "tiny-draft", tiny)
    if "smollm2" in known_models():
        asked = json.loads(PROMPTS.read_text())
        real = [(ChatMessage("user", item["ask"]),) for kind in KINDS for item in asked[kind][:count]]
        yield Pair("smollm2", "smollm2", real)


def _heldout(task: str) -> list[dict]:
    return [item for item in heldout() if item["task"] == task and item.get("messages")]


def measure(quick: bool) -> Figure:
    """All prompts with and without the draft model's penalties; both must give the same texts."""
    count, max_tokens = (1, 16) if quick else (3, 64)
    samples: dict[str, list[float]] = {}
    shares: dict[str, float] = {}
    for pair in pairs(count):
        for name, asked in asyncio.run(_measured(pair, max_tokens)).items():
            samples[name] = [each.per_round for each in asked]
            drafted = sum(each.stats.drafted for each in asked)
            shares[name] = round(sum(each.stats.accepted for each in asked) / drafted, 4)
    return Figure(
        title="Penalties in the draft model",
        unit="tokens/round",
        more_is_better=True,
        compared=(
            "Tokens that a step of the target brings, one sample for each prompt: drafts whose model counts the "
            "penalties and applies min_p as the target does, against drafts whose model does not. Engine torch in "
            f"float32, llama.cpp drafts of {LENGTH} tokens, at most {max_tokens} tokens of answer. Pairs: tiny with "
            "tiny-draft, SmolLM2 with its own 4-bit file. Both contenders wrote the same texts."
        ),
        loses=(
            "Where a draft model is much less sure than its target, as in the tiny family: penalties turn the draft's "
            "choice where the target's holds."
        ),
        samples=samples,
        ratios=tuple(_ratios(samples)),
        facts={"accepted share of all draft tokens": shares},
    )


def _ratios(samples: Mapping[str, Sequence[float]]) -> Iterator[Comparison]:
    for name in samples:
        if name.endswith(COUNTING):
            what = name.removesuffix(f", {COUNTING}")
            yield Comparison(f"{what}: applied against ignored", name, f"{what}, {IGNORING}")


async def _measured(pair: Pair, max_tokens: int) -> dict[str, list[DraftedAnswer]]:
    words = (
        *("serve", "--model", pair.target, "--engine", "torch", "--dtype", "float32", "--threads", "1"),
        *("--listen", "127.0.0.1:0", "--policy", "fcfs", "--draft-wait", "5"),
    )
    found: dict[str, list[DraftedAnswer]] = {}
    fetched = {"OPENSLED_CACHE_DIR": str(cache_folder())}
    with Process(words, isolated=True, environment=fetched) as server:
        for kind, factory in FACTORIES.items():
            link = Link(Endpoint(server.wait_ready()))
            found |= await _answers(link, factory(pair.draft, 1), kind, pair, max_tokens)
    _require_equal(found)
    return found


async def _answers(
    link: Link, factory: DrafterFactory, kind: str, pair: Pair, max_tokens: int
) -> dict[str, list[DraftedAnswer]]:
    target = await fetch_target(link, MATCH, factory, None)
    device = Device(link, target.info, target.tokenizer, factory, FixedLength(LENGTH))
    found = {}
    try:
        for case, params in CASES.items():
            tasks = [Task(prompt, replace(params, max_tokens=max_tokens)) for prompt in pair.prompts]
            found[f"{pair.target}, {case}, {kind}"] = [await ask(device, task) for task in tasks]
    finally:
        await device.close()
    return found


def _require_equal(found: Mapping[str, Sequence[DraftedAnswer]]) -> None:
    for name, asked in found.items():
        other = found[name.replace(COUNTING, IGNORING)]
        if [each.tokens for each in asked] != [each.tokens for each in other]:
            raise OpenSledError(f"drafts have changed an answer: {name}")
