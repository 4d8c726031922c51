"""How far a quantized GGUF target, as llama.cpp computes it here, agrees with its own weights in 16 bits.

Tried at the first load on a few plain questions, and remembered beside the results of other tests at load.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from opensled.core.errors import OpenSledError
from opensled.models import remembered, widened
from opensled.models.gguf_file import read_head
from opensled.models.llama import LlamaModel, build
from opensled.models.step_threads import StepThreads
from opensled.process.host_memory import available_host_bytes
from opensled.process.logs import announce, tell, tell_long
from verify_server.engine.llamacpp.llama_batch import LlamaPiece
from verify_server.engine.llamacpp.llama_cache import LlamaCache

QUESTIONS = (
    "What is the capital of Italy?",
    "Hi",
    "How many minutes are in an hour?",
    "Name three animals.",
    "Who painted the Mona Lisa?",
    "Write one sentence about the moon.",
    "What is the opposite of small?",
    "Give me a tip for learning a language.",
)
TOKENS = 16  # of each answer
CELLS = 4096  # for all prompts and answers; a system turn may be long
# SmolLM2-135M agrees at 124 of 128 places from Q4_1 and at 125 from Q8_0, which both answer wrongly.
LEAST = 0.98
# Of the 16-bit weights with which a file is compared: 650 million parameters, so that a start stays quick. Chosen.
MAX_BYTES, MEMORY_SHARE = 1_300_000_000, 0.25
Render = Callable[[str], Sequence[int]]  # token ids of a chat that begins with a question


class Agreement(NamedTuple):
    """At how many places of the answers the likeliest token is that of the 16-bit weights."""

    equal: int
    places: int

    @property
    def is_poor(self) -> bool:
        return self.equal < LEAST * self.places


def check(model: LlamaModel, path: Path, render: Render, threads: int) -> None:
    """One line of warning where `model`, loaded from `path` as it is stored, agrees poorly with its own weights.

    A file that is not quantized, or whose weights in 16 bits do not fit here, is not tried.
    """
    head = read_head(path)
    size = widened.wide_bytes(head)
    if not widened.is_quantized(head) or size > min(MAX_BYTES, MEMORY_SHARE * available_host_bytes()):
        return
    try:
        found = _recall(_place(path, threads)) or _find(model, path, render, threads, size)
    except OpenSledError as error:
        tell(f"{path.name} was not compared with its weights in 16 bits: {error}")
        return
    if found.is_poor:
        announce(
            f"{path.name} computes other answers than its weights in 16 bits: {found.places - found.equal} of "
            f"{found.places} next tokens differ; opensled serve --dtype float16 widens it ({size / 1e6:.0f} MB)"
        )


def _find(model: LlamaModel, path: Path, render: Render, threads: int, size: int) -> Agreement:
    with tell_long("still comparing with the weights in 16 bits") as spell:
        prompts = [render(question) for question in QUESTIONS]
        with widened.make_f16(path, size) as file:
            answers = _answers(LlamaModel(file), prompts, threads)
        found = compare(model, prompts, answers, threads)
    remembered.keep(_place(path, threads), found._asdict())
    tell(
        f"compared with its weights in 16 bits in {spell.seconds:.1f} s: {found.equal} of {found.places} equal"
    )
    return found


def _answers(model: LlamaModel, prompts: Sequence[Sequence[int]], threads: int) -> list[list[int]]:
    """The likeliest tokens that follow each prompt."""
    cache = LlamaCache(model, CELLS, len(prompts), StepThreads([threads]))
    try:
        answers = [[int(row.argmax())] for row in _read(cache, prompts, 1)]
        for done in range(TOKENS - 1):
            pieces = [
                LlamaPiece(index, len(prompt) + done, answer[-1:], 1)
                for index, (prompt, answer) in enumerate(zip(prompts, answers))
            ]
            for answer, row in zip(answers, cache.decode(pieces)):
                answer.append(int(row.argmax()))
        return answers
    finally:
        cache.close()


def compare(
    model: LlamaModel, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], threads: int
) -> Agreement:
    """How often `model` would go on as `answers` do, given what comes before in them. Raises EngineError."""
    cache = LlamaCache(model, CELLS, len(prompts), StepThreads([threads]))
    try:
        texts = [[*prompt, *answer[:-1]] for prompt, answer in zip(prompts, answers)]
        given = _read(cache, texts, TOKENS).argmax(1)
    finally:
        cache.close()
    wanted = np.concatenate(answers)
    return Agreement(int((given == wanted).sum()), len(wanted))


def _read(cache: LlamaCache, texts: Sequence[Sequence[int]], rows: int) -> np.ndarray:
    """Logits after each of the last `rows` tokens of each text; what all have in common is computed once."""
    columns = itertools.takewhile(lambda tokens: len(set(tokens)) == 1, zip(*texts))
    shared = min(len(list(columns)), min(map(len, texts)) - rows)
    if shared:
        cache.decode([LlamaPiece(0, 0, texts[0][:shared], 0)])
    for sequence in range(1, len(texts)):
        cache.copy(0, sequence, 0, shared)
    return cache.decode([LlamaPiece(index, shared, text[shared:], rows) for index, text in enumerate(texts)])


def _place(path: Path, threads: int) -> Path:
    """Of the result: anew for another file, another llama.cpp or processor, and other questions."""
    status = path.stat()
    facts = (path.resolve(), status.st_size, status.st_mtime_ns, threads, build(), QUESTIONS, TOKENS)
    return remembered.place(facts)


def _recall(place: Path) -> Agreement | None:
    try:
        found = Agreement(**remembered.recall(place))
    except TypeError:
        return None
    return found if all(isinstance(value, int) for value in found) else None
