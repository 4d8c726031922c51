"""Tries at start what devices count on: drafts change no text, and right ones save steps.

A few answers are written without drafts, then again with right, wrong and late ones, all through vLLM's own requests.
Rounding depends on the shape of a batch, so another token may be drawn where the two scores were so close that rounding
can turn them round.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from opensled.core.errors import SelfTestFailed
from opensled.core.messages import SamplingParams
from opensled.core.noise import gumbel, noise_key
from scheduler.plan import NO_OFFER, SessionView
from vllm_plugin.loop import request_params
from vllm_plugin.messages import TICK, News, RequestTerms, encode

TEMPERATURES = (0.0, 0.8)
TOKENS, DRAFT = 16, 4  # of each answer and of each draft
LIKELIEST = 20  # tokens that another batch's rounding may put in the place of the drawn one
# Nats by which rounding may change a log-probability; logits of 16 have steps of 1/16 in bfloat16, 1/64 in float16
ROUNDING = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
STYLES = ("right", "wrong", "late")
SECONDS = 300.0  # a first step may compile; chosen
VIEW = SessionView(0, 1, False, 0.0, NO_OFFER, NO_OFFER)


@dataclass
class _Text:
    """One answer as it grows; `known`: the answer without drafts, None = it is that one."""

    prompt: tuple[int, ...]
    temperature: float
    style: str = ""
    known: _Text | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[Mapping[int, float]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # tokens of the answer before each

    @property
    def key(self) -> bytes:
        return noise_key(len(self.prompt))

    def add(self, choice: Any) -> None:
        self.steps.append(len(self.ids))
        self.ids += choice.token_ids
        found = choice.logprobs or []
        self.logprobs += [{id: value.logprob for id, value in each.items()} for each in found]

    def news(self, name: str, vocab_size: int) -> News:
        """With its draft for the next step."""
        if self.known is None:
            return News(name, VIEW)
        begin = self.steps[-1] if self.style == "late" else len(self.ids)
        ids = self.known.ids[begin : begin + DRAFT]
        if self.style == "wrong":
            ids = [*ids[:2], *[(id + 1) % vocab_size for id in ids[2:]]]
        return News(name, VIEW, len(self.prompt) + begin, tuple(ids))

    def lead(self, place: int, other: int) -> float:
        """By how much the score of the token at `place` was above that of the id `other`, in nats / temperature."""
        found = self.logprobs[place]
        if other not in found:
            return inf
        ids = np.array([self.ids[place], other])
        scores = np.array([found[int(id)] for id in ids])
        if self.temperature:
            scores /= self.temperature
            scores += gumbel(self.key, len(self.prompt) + place, ids)
        return float(scores[0] - scores[1])


async def run(client: Any, model_config: Any, prompts: Iterable[tuple[int, ...]]) -> None:
    """Raises SelfTestFailed. `client`: vLLM's `EngineClient`, `model_config`: of its configuration."""
    try:
        async with asyncio.timeout(SECONDS):
            await _compare_all(client, model_config, [*prompts])
    except SelfTestFailed:
        raise
    except Exception as error:
        raise SelfTestFailed(f"vLLM does not write a device's answers: {error!r}") from error


async def _compare_all(client: Any, model_config: Any, prompts: list[tuple[int, ...]]) -> None:
    plain = [_Text(prompt, temperature) for temperature in TEMPERATURES for prompt in prompts]
    drafted = [_Text(each.prompt, each.temperature, style, each) for style in STYLES for each in plain]
    for texts in (plain, drafted):
        await asyncio.gather(*[_write(client, model_config, text) for text in texts])
    rounding = ROUNDING.get(str(model_config.dtype).removeprefix("torch."), ROUNDING["bfloat16"])
    for text in drafted:
        _compare(text, rounding)
    steps = [sum(len(text.steps) for text in texts) for texts in (drafted[: len(plain)], plain)]
    if steps[0] >= steps[1]:
        raise SelfTestFailed(
            f"vLLM takes {steps[0]} steps with right drafts and {steps[1]} without: it verifies no drafts"
        )


async def _write(client: Any, model_config: Any, text: _Text) -> None:
    name = uuid.uuid4().hex
    # Each is computed anew: none finds KV of another style.
    prompt = {"prompt_token_ids": list(text.prompt), "cache_salt": name}
    sampling = SamplingParams(temperature=text.temperature)
    terms = RequestTerms(name, "", text.key.hex(), len(text.prompt), sampling, VIEW, trial=True)
    logprobs = None if text.known else min(LIKELIEST, model_config.max_logprobs)
    params, vocab_size = request_params(terms, TOKENS, (), logprobs), model_config.get_vocab_size()
    async for output in client.generate(prompt, params, f"opensled-{name}"):
        (choice,) = output.outputs
        if choice.finish_reason in ("error", "abort"):
            raise SelfTestFailed(
                f"vLLM ended an answer with {text.style or 'no'} drafts: {choice.finish_reason}"
            )
        text.add(choice)
        if len(text.ids) < TOKENS:
            await client.engine_core.call_utility_async(TICK, encode([text.news(name, vocab_size)]))


def _compare(text: _Text, rounding: float) -> None:
    """Raises SelfTestFailed where it parts from the plain one at a token whose score was clearly ahead."""
    plain, scale = text.known, 2 * rounding / (text.temperature or 1.0)
    assert plain is not None
    for place, (one, other) in enumerate(zip(plain.ids, text.ids, strict=True)):
        if one == other:
            continue
        if (lead := plain.lead(place, other)) <= scale:
            return  # what follows has another text before it
        raise SelfTestFailed(
            f"vLLM writes another text with {text.style} drafts than without, at T = {text.temperature}: token "
            f"{place + 1} is {other} instead of {one}, whose score is ahead by {lead:.2g} (rounding explains "
            f"{scale:.2g})"
        )
