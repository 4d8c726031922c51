"""Answers of the model `tiny` that are known: written token by token by engine torch alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from opensled.core.messages import Guide, SamplingParams, TokenLogprobs
from opensled.core.noise import noise_key
from opensled.core.penalties import TokenCounts
from opensled.core.protocol import EndRules, cut
from verify_server.engine.base import Segment
from verify_server.engine.torch import torch_engine
from verify_server.riders.answer_logprobs import LogprobsReading
from verify_server.rules.base import AcceptanceResult, DraftCheck
from verify_server.rules.decide import Question, decide
from verify_server.rules.match import Match
from verify_server.text.guide import GuideCompiler

TINY = Path(__file__).resolve().parents[2] / "models/tiny"
EOS, VOCABULARY, CONTEXT = 0, 2048, 512
QUESTIONS = (
    "What is the capital of France?",
    "Write a story about a fox and a river.",
    "How does a bicycle stay upright?",
    "List five fruits.",
    "What is 12 plus 30?",
    "Tell me about the sea.",
    "Who lives in the forest?",
    "Write a poem about rain.",
)
STORY = "Tell me of a fox, a river, a bear and three birds in a wood. " * 3
GREEDY, WARM = SamplingParams(temperature=0.0, seed=3), SamplingParams(temperature=0.8, seed=4)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"params": GREEDY},
    "warm": {"params": WARM},
    "nucleus": {"params": SamplingParams(temperature=1.0, top_p=0.9, seed=5)},
    "penalties": {
        "params": SamplingParams(
            temperature=0.8, seed=6, presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2
        )
    },
    "biases": {"params": SamplingParams(temperature=0.8, seed=7, logit_bias=((15, 5.0), (317, -100.0)))},
    "schema": {"params": WARM, "schema": json.dumps(SCHEMA)},
    "schema, greedy": {"params": GREEDY, "schema": json.dumps(SCHEMA)},
    "log-probabilities": {"params": WARM, "top_logprobs": 3},
}


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


@cache
def _guides() -> GuideCompiler:
    return GuideCompiler((TINY / "tokenizer.json").read_bytes(), VOCABULARY, (EOS,), "")


@cache
def _torch() -> torch_engine.TorchEngine:
    return torch_engine.load(str(TINY), device="cpu", dtype="float32", kv_tokens=2 * CONTEXT)


def prompt_of(question: str) -> tuple[int, ...]:
    chat = f"<|user|>{question}<|end|><|assistant|>"
    return tuple(tokenizer().encode(chat, add_special_tokens=False).ids)


@dataclass
class Answer:
    """One answer as it grows; `tokens` holds the prompt as well."""

    prompt: tuple[int, ...]
    params: SamplingParams
    length: int = 40
    schema: str = ""
    top_logprobs: int | None = None
    tokens: list[int] = field(init=False)
    logprobs: list[TokenLogprobs] = field(init=False, default_factory=list)
    finish_reason: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.ends = EndRules(frozenset({EOS}), frozenset(), len(self.prompt) + self.length)
        self._counts = TokenCounts() if self.params.penalizes else None
        guide = Guide(json_schema=self.schema) if self.schema else None
        self._constraint = _guides().start(guide, (), "", self.prompt) if guide else None

    @property
    def text(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    def question(self) -> Question:
        check = DraftCheck((), len(self.tokens), self.params, noise_key(self.params.seed or 0))
        if self._constraint is not None:
            check = check._replace(masks=self._constraint.next_masks(()))
        if self._counts is not None:
            check = check._replace(emitted=self._counts.along(()))
        reads = () if self.top_logprobs is None else (LogprobsReading(self.top_logprobs),)
        return Question(check, Match(), reads)

    def commit(self, result: AcceptanceResult) -> None:
        news, self.finish_reason = cut([result.next_token], len(self.tokens), self.ends)
        self.tokens += news
        self.logprobs += result.read.get(LogprobsReading, ())[: len(news)]
        if self._counts is not None:
            self._counts.add(news)
        if self._constraint is not None:
            self._constraint.commit(news)


def by_torch(answer: Answer) -> Answer:
    """The same answer, by engine torch alone."""
    answer, engine, computed = replace(answer), _torch(), 0
    blocks = tuple(range(-(-answer.ends.last_length // engine.info.block_size)))
    while not answer.finish_reason:
        segment = Segment(tuple(answer.tokens[computed:]), computed, blocks, 1)
        result = decide({0: answer.question()}, engine.forward([segment]))[0]
        assert isinstance(result, AcceptanceResult)
        computed = len(answer.tokens)
        answer.commit(result)
    return answer


def assert_close_logprobs(found: Sequence[TokenLogprobs], wanted: Sequence[TokenLogprobs]) -> None:
    assert [[id for id, _ in place] for place in found] == [[id for id, _ in place] for place in wanted]
    values, others = ([value for place in each for _, value in place] for each in (found, wanted))
    assert values == pytest.approx(others, abs=1e-3)
