"""Tries at load what this engine counts on: drafts change no text, and right ones save steps.

A few answers are written without drafts, then again with right, wrong and late ones. Where rounding depends on the
shape of a batch, another token may be drawn if the two scores were so close that rounding can turn them round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from opensled.core.errors import EngineError, SelfTestFailed
from opensled.core.messages import DraftToken, SamplingParams, TokenLogprobs
from opensled.core.noise import gumbel, noise_key
from opensled.core.protocol import EndRules
from verify_server.engine.vllm.core import VllmCore
from verify_server.engine.vllm.decoding import Decode, DecodeResult
from verify_server.riders.answer_logprobs import LogprobsReading
from verify_server.rules.base import AcceptanceResult, DraftCheck, decided_ids
from verify_server.rules.decide import Question
from verify_server.rules.match import Match

TEMPERATURES = (0.0, 0.8)
TOKENS, DRAFT = 16, 4  # of each answer and of each draft
LIKELIEST = 20  # tokens that another batch's rounding may put in the place of the drawn one
# Nats by which rounding may change a log-probability; logits of 16 have steps of 1/16 in bfloat16, 1/64 in float16
ROUNDING = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
STYLES = ("right", "wrong", "late")


@dataclass
class _Text:
    """One answer as it grows; `known`: the answer without drafts, None = it is that one."""

    name: str
    tokens: list[int]
    params: SamplingParams
    ends: EndRules
    style: str = ""
    known: _Text | None = None
    prompt_length: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def news(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def own_logprobs(self) -> list[tuple[int, float]]:
        """Of each token of the answer."""
        return [each[0] for each in self.logprobs]

    @property
    def over(self) -> bool:
        return len(self.tokens) >= self.ends.last_length

    def decode(self, step: int, vocab_size: int) -> Decode | None:
        """What it decodes in a step; None: its draft is late."""
        if self.style == "late" and (step + len(self.name)) % 3 == 0:
            return None
        done = len(self.tokens)
        ids = self.known.tokens[done : done + DRAFT] if self.known else []
        if self.style == "wrong":
            ids = [*ids[:2], *[(id + 1) % vocab_size for id in ids[2:]]]
        check = DraftCheck(tuple(map(DraftToken, ids)), done, self.params, self._key)
        return Decode(check, question=self._question)

    def _question(self, check: DraftCheck) -> Question:
        """Only the answer without drafts is asked what else might have been drawn."""
        return Question(check, Match(), (LogprobsReading(0 if self.known else LIKELIEST),))

    @property
    def _key(self) -> bytes:
        return noise_key(self.prompt_length)

    def commit(self, progress: DecodeResult) -> None:
        outcome, check = progress.outcome, progress.check
        if isinstance(outcome, EngineError):
            raise SelfTestFailed(f"vLLM cannot write a plain answer: {outcome}")
        if isinstance(outcome, AcceptanceResult) and check is not None:
            news = decided_ids(check, outcome)[: self.ends.last_length - len(self.tokens)]
            self.tokens += news
            self.logprobs += outcome.read[LogprobsReading][: len(news)]

    def lead(self, place: int, other: int) -> float:
        """By how much the score of the token at `place` was above that of the id `other`, in nats / temperature."""
        found = dict(self.logprobs[place])
        if other not in found:
            return inf
        ids = np.array([self.news[place], other])
        scores = np.array([found[int(id)] for id in ids])
        if self.params.temperature:
            scores /= self.params.temperature
            scores += gumbel(self._key, self.prompt_length + place, ids)
        return float(scores[0] - scores[1])


def run(core: VllmCore, prompts: Sequence[Sequence[int]], dtype: str) -> bool:
    """Whether no bit of a log-probability depended on the batch. Raises SelfTestFailed."""
    same_bits = True
    for temperature in TEMPERATURES:
        plain = _texts(prompts, SamplingParams(temperature=temperature))
        steps = {"": _write(core, plain)}
        for style in STYLES:
            texts = _texts(prompts, plain[0].params, style, plain)
            steps[style] = _write(core, texts)
            for one, other in zip(plain, texts):
                _compare(one, other, ROUNDING[dtype])
                same_bits = same_bits and one.own_logprobs == other.own_logprobs
        if steps["right"] >= steps[""]:
            raise SelfTestFailed(
                f"vLLM takes {steps['right']} steps with right drafts and {steps['']} without: it verifies no drafts"
            )
    return same_bits


def _texts(
    prompts: Sequence[Sequence[int]], params: SamplingParams, style: str = "", known: Sequence[_Text] = ()
) -> list[_Text]:
    found = []
    for number, prompt in enumerate(prompts):
        ends = EndRules(frozenset(), frozenset(), len(prompt) + TOKENS)
        plain = known[number] if known else None
        name = f"self-test{number * '.'} {style or 'plain'} {params.temperature}"
        found.append(_Text(name, list(prompt), params, ends, style, plain, len(prompt)))
    return found


def _write(core: VllmCore, texts: Sequence[_Text]) -> int:
    """How many steps all texts took. Each is computed anew: none finds KV of another style."""
    for text in texts:
        core.add(text.name, text.tokens, text.ends, salt=text.name)
    live: Mapping[str, _Text] = {text.name: text for text in texts}
    most = 2 * TOKENS * len(texts)
    for step in range(1, most):
        plan = {name: text.decode(step, core.vocab_size) for name, text in live.items()}
        progress = core.step({name: decode for name, decode in plan.items() if decode is not None})
        for name, text in live.items():
            text.commit(progress[name])
        live = {name: text for name, text in live.items() if not text.over}
        if not live:
            return step
    raise SelfTestFailed(f"vLLM has not written {len(texts)} answers of {TOKENS} tokens in {most} steps")


def _compare(plain: _Text, drafted: _Text, rounding: float) -> None:
    """Raises SelfTestFailed where the texts part at a token whose score was clearly ahead."""
    scale = 2 * rounding / (plain.params.temperature or 1.0)
    for place, (one, other) in enumerate(zip(plain.news, drafted.news)):
        if one == other:
            continue
        if (lead := plain.lead(place, other)) <= scale:
            return  # what follows has another text before it
        raise SelfTestFailed(
            f"vLLM writes another text with {drafted.style} drafts than without, at T = {plain.params.temperature}: "
            f"token {place + 1} is {other} instead of {one}, whose score is ahead by {lead:.2g} "
            f"(rounding explains {scale:.2g})"
        )
