"""Stage 3: answers of the bundled model on the card, with drafts of all kinds, judged by the processor."""

import gc
import random
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from lab.benchmarks.gpu.answer_judge import Judge
from lab.benchmarks.gpu.answer_texts import KINDS, Answer, Question, Writer, questions
from lab.benchmarks.gpu.checks import Check, run_checks
from lab.benchmarks.gpu.stage import Stage
from opensled.models.store import model_path
from verify_server.engine.base import MAX_TREE
from verify_server.engine.torch.torch_engine import load

MODEL = "tiny"


class Way(NamedTuple):
    """One way to compute the target; `load`'s options."""

    attention: str
    graphs: str
    numerics: str
    dtype: str

    @property
    def name(self) -> str:
        return f"attention {self.attention}, graphs {self.graphs}, numerics {self.numerics}, {self.dtype}"


class Size(NamedTuple):
    """How much is written: each question once without drafts, and once with them."""

    questions: int
    tokens: int  # of an answer
    prompts: tuple[int, int]  # tokens, at least and at most
    kv_tokens: int
    largest: int  # tokens of a tree


# The first one is what a server does.
WAYS = (
    Way("triton", "auto", "auto", "bfloat16"),
    Way("triton", "off", "auto", "bfloat16"),
    Way("triton", "auto", "fast", "bfloat16"),
    Way("sdpa", "off", "auto", "bfloat16"),
    Way("triton", "auto", "auto", "float32"),
    Way("triton", "off", "fast", "bfloat16"),
    Way("sdpa", "off", "fast", "bfloat16"),
    Way("triton", "auto", "fast", "float32"),
    Way("triton", "off", "auto", "float32"),
    Way("triton", "off", "fast", "float32"),
    Way("sdpa", "off", "auto", "float32"),
    Way("sdpa", "off", "fast", "float32"),
)
# The same code in its slow form: the interpreter of Triton takes half a minute for the test at load.
SMALL_WAYS = (Way("sdpa", "off", "auto", "float32"), Way("gather", "shapes", "fast", "float32"))
LONG = (4, 200)
FULL, OTHER = (Size(count, 32, LONG, kv_tokens=16 * 320, largest=MAX_TREE) for count in (100, 30))
SMALL = Size(10, 6, (4, 16), kv_tokens=160, largest=10)


def measure(stage: Stage) -> None:
    """The way that a server takes comes first."""
    judge = cache(partial(Judge, str(model_path(MODEL))))
    checks = [Check(way.name, partial(tried, way, size, stage.device, judge)) for way, size in _plan(stage)]
    run_checks(stage, checks)


def _plan(stage: Stage) -> list[tuple[Way, Size]]:
    if stage.is_small:
        return [(way, SMALL) for way in SMALL_WAYS]
    return [(way, OTHER if number else FULL) for number, way in enumerate(WAYS)]


def tried(way: Way, size: Size, device: str, judge: Callable[[torch.dtype], Judge]) -> dict[str, Any]:
    """What one way wrote, and what the judge of its precision says."""
    began = time.perf_counter()
    path, options = str(model_path(MODEL)), way._asdict()
    engine = load(path, device, kv_tokens=size.kv_tokens, **options)
    loaded = time.perf_counter() - began
    asked = questions(size.questions, engine.info.vocab_size, size.tokens, size.prompts)
    writer = Writer(engine, random.Random(1), size.largest)
    plain, drafted = written(writer, asked)
    seconds = time.perf_counter() - began - loaded
    facts = {**options, "used": engine.way, "level": engine.info.numerics, "load_s": round(loaded, 2)}
    result = {**facts, "write_s": round(seconds, 2), **told(writer, plain, drafted)}
    result |= judge(engine.network.dtype).verdict(
        [(each.question, each.tokens) for each in (*plain, *drafted)]
    )
    del engine, writer
    gc.collect()  # the weights leave the GPU before the next ones come
    return {**result, "holds": holds(result)}


def written(writer: Writer, asked: Sequence[Question]) -> tuple[list[Answer], list[Answer]]:
    """Each question answered without drafts, and then with those of one kind: they know the first answer."""
    plain = [Answer(question, "none") for question in asked]
    writer.write(plain)
    # By pairs, so that each kind has greedy answers and others.
    kinds = [KINDS[number // 2 % len(KINDS)] for number in range(len(asked))]
    drafted = [Answer(each.question, kind, each.tokens) for each, kind in zip(plain, kinds)]
    writer.write(drafted)
    return plain, drafted


def told(writer: Writer, plain: Sequence[Answer], drafted: Sequence[Answer]) -> dict[str, Any]:
    """Numbers of all answers, and of each kind of drafts."""
    every = [*plain, *drafted]
    kinds = {kind: [each for each in every if each.kind == kind] for kind in ("none", *KINDS)}
    return {
        "answers": len(every),
        "tokens": sum(len(each.tokens) for each in every),
        "steps": writer.steps,
        "differ": sum(each.tokens != each.right for each in drafted),
        "drafts": {kind: _of_kind(answers) for kind, answers in kinds.items() if answers},
    }


def _of_kind(answers: Sequence[Answer]) -> dict[str, Any]:
    decisions, grown = sum(each.decisions for each in answers), sum(len(each.grown) for each in answers)
    return {
        "answers": len(answers),
        "drafted": sum(each.drafted for each in answers),
        "accepted": sum(each.accepted for each in answers),
        "tokens_per_step": round(grown / decisions, 2),
        "differ": sum(each.kind != "none" and each.tokens != each.right for each in answers),
    }


def holds(result: dict[str, Any]) -> bool:
    """No token is wrong; at level exact drafts change no text, and right drafts stand."""
    right = result["drafts"].get("right", {"drafted": 0, "accepted": 0})
    stands = right["drafted"] == right["accepted"]
    return not result["wrong"] and (result["level"] == "fast" or (not result["differ"] and stands))
