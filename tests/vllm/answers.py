"""Answers of the model `tiny` that are written step by step: by engine torch alone, and by vLLM with drafts."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from opensled.core.errors import OpenSledError
from opensled.core.messages import DraftToken, Guide, SamplingParams, TokenLogprobs
from opensled.core.noise import noise_key
from opensled.core.penalties import TokenCounts
from opensled.core.protocol import EndRules, cut
from verify_server.engine.base import Segment
from verify_server.engine.torch import torch_engine
from verify_server.engine.vllm.arguments import FIXED
from verify_server.engine.vllm.core import VllmCore, start
from verify_server.engine.vllm.decoding import Decode, DecodeResult
from verify_server.riders.answer_logprobs import LogprobsReading
from verify_server.rules.base import AcceptanceResult, DraftCheck, decided_ids
from verify_server.rules.decide import Question, decide
from verify_server.rules.match import Match
from verify_server.text.guide import GuideCompiler
from vllm_plugin import versions
from vllm_plugin.drafters import speculative_config

os.environ.setdefault("OMP_NUM_THREADS", "1")
versions.prepare()

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
ARCTIC = pytest.mark.skipif(
    find_spec("arctic_inference") is None, reason="needs arctic-inference 0.1.1, built for this torch"
)
Drafting = Callable[["Answer"], "Decode | None"]  # None: its device is late


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


@cache
def _guides() -> GuideCompiler:
    return GuideCompiler((TINY / "tokenizer.json").read_bytes(), VOCABULARY, (EOS,), "")


@cache
def _torch() -> torch_engine.TorchEngine:
    return torch_engine.load(str(TINY), device="cpu", dtype="float32", kv_tokens=2 * CONTEXT)


@contextmanager
def running(
    drafter: str = "none", longest: int = 8, draft_model: str = "", **arguments: Any
) -> Iterator[VllmCore]:
    """`tiny` in vLLM, with further engine arguments."""
    found = {
        "model": str(TINY),
        "dtype": "float32",
        "max_model_len": CONTEXT,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "block_size": 32,  # the least that vLLM's attention takes on a processor
        "kv_cache_memory_bytes": 64 << 20,
        "speculative_config": speculative_config(drafter, draft_model, longest),
    }
    core = start({**found, **arguments, **FIXED})
    try:
        yield core
    finally:
        core.close()


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
    name: str = ""
    salt: str = ""
    ends_at_eos: bool = True
    tokens: list[int] = field(init=False)
    logprobs: list[TokenLogprobs] = field(init=False, default_factory=list)
    finish_reason: str = field(init=False, default="")
    decisions: int = field(init=False, default=0)  # steps that decided tokens of it

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.key = noise_key(self.params.seed or 0)
        self.ends = EndRules(
            frozenset({EOS} if self.ends_at_eos else ()), frozenset(), len(self.prompt) + self.length
        )
        self._counts = TokenCounts() if self.params.penalizes else None
        guide = Guide(json_schema=self.schema) if self.schema else None
        self._constraint = _guides().start(guide, (), "", self.prompt) if guide else None

    def anew(self) -> Answer:
        return replace(self)

    @property
    def text(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    def check(self, draft: Sequence[int] = ()) -> DraftCheck:
        return DraftCheck(tuple(map(DraftToken, draft)), len(self.tokens), self.params, self.key)

    def question(self, check: DraftCheck) -> Question:
        if self._constraint is not None:
            check = check._replace(masks=self._constraint.next_masks(check.ids))
        if self._counts is not None:
            check = check._replace(emitted=self._counts.along(check.ids))
        reads = () if self.top_logprobs is None else (LogprobsReading(self.top_logprobs),)
        return Question(check, Match(), reads)

    def decode(self, draft: Sequence[int] = (), **more: Any) -> Decode:
        return Decode(self.check(draft), question=self.question, **more)

    def commit(self, ids: Sequence[int], result: AcceptanceResult) -> None:
        self.decisions += 1
        news, self.finish_reason = cut(ids, len(self.tokens), self.ends)
        self.tokens += news
        self.logprobs += result.read.get(LogprobsReading, ())[: len(news)]
        if self._counts is not None:
            self._counts.add(news)
        if self._constraint is not None:
            self._constraint.commit(news)


def by_torch(answer: Answer) -> Answer:
    """The same answer, by engine torch alone."""
    answer, engine, computed = answer.anew(), _torch(), 0
    blocks = tuple(range(-(-answer.ends.last_length // engine.info.block_size)))
    while not answer.finish_reason:
        segment = Segment(tuple(answer.tokens[computed:]), computed, blocks, 1)
        question = answer.question(answer.check())
        result = decide({0: question}, engine.forward([segment]))[0]
        assert isinstance(result, AcceptanceResult)
        computed = len(answer.tokens)
        answer.commit([result.next_token], result)
    return answer


def write(core: VllmCore, answers: Sequence[Answer], drafting: Drafting, most: int = 2000) -> int:
    """Write all answers by vLLM; how many steps that took."""
    for number, answer in enumerate(answers):
        answer.name = answer.name or f"answer {number}"
        core.add(answer.name, answer.tokens, answer.ends, answer.salt)
    live = {answer.name: answer for answer in answers}
    for steps in range(1, most):
        one_step(core, live, drafting)
        live = {name: answer for name, answer in live.items() if not answer.finish_reason}
        if not live:
            assert core.idle, "vLLM sees the same ends"
            return steps
    raise AssertionError(f"not written in {most} steps: {[*live]}")


def one_step(
    core: VllmCore, live: Mapping[str, Answer], drafting: Drafting, failed: list[str] | None = None
) -> dict[str, DecodeResult]:
    """A step of the answers that live; the names of those that fail go to `failed`, which is a failure without it."""
    plan = {name: found for name, answer in live.items() if (found := drafting(answer)) is not None}
    progress = core.step(plan)
    for name, answer in live.items():
        outcome = progress[name].outcome
        if isinstance(outcome, OpenSledError) and failed is not None:
            failed.append(name)
        elif outcome is not None:
            assert isinstance(outcome, AcceptanceResult), outcome
            answer.commit(decided_ids(progress[name].check, outcome), outcome)
    return progress


class Drafts:
    """Drafts of texts that are known, with errors of a random generator."""

    def __init__(
        self, known: Sequence[Answer], right: float = 1.0, late: float = 0.0, length: int = 5, seed: int = 1
    ) -> None:
        """`right`: share of the tokens that are right; `late`: of the steps in which a device has not answered."""
        self._known = {answer.prompt: answer for answer in known}
        self._right, self._late, self._length = right, late, length
        self._random = random.Random(seed)

    def __call__(self, answer: Answer) -> Decode | None:
        if self._random.random() < self._late:
            return None
        done = len(answer.tokens)
        ids = self._known[answer.prompt].tokens[done : done + self._length]
        draft = [
            id if self._random.random() < self._right else self._random.randrange(VOCABULARY) for id in ids
        ]
        return answer.decode(draft)


def without(answer: Answer) -> Decode:
    """No drafts."""
    return answer.decode()


def assert_close_logprobs(one: Answer, other: Answer) -> None:
    assert len(one.logprobs) == len(other.logprobs) == (len(one.text) if one.top_logprobs else 0)
    for mine, theirs in zip(one.logprobs, other.logprobs):
        assert [id for id, _ in mine] == [id for id, _ in theirs]
        assert [value for _, value in mine] == pytest.approx([value for _, value in theirs], abs=1e-3)
