"""Training text as two flat arrays of token ids, chat and code, and the batches cut from them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from .item import Item, Task
from .tasks import TASKS
from .tasks.code import training_files
from .train_tokenizer import END, render_prompt

ITEMS_PER_CHUNK = 2000


# Ids and wanted marks, both [rows, length + 1].
Batch = tuple[NDArray[np.int64], NDArray[np.bool_]]


@dataclass(frozen=True)
class Stream:
    """Documents one after the other. `wanted` marks the ids that training predicts, `starts` where documents begin."""

    ids: NDArray[np.uint16]
    wanted: NDArray[np.bool_]
    starts: NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    chat: Stream
    code: Stream

    def batch(self, draw: Sequence[int], rows: int, chat_rows: int, length: int) -> Batch:
        """`rows` cuts, the first `chat_rows` of them chat, the others code.

        They depend on `draw` (seed, step) alone, so a resumed run sees what an unbroken one would.
        """
        rng = np.random.default_rng(draw)
        cuts = [cut(self.chat if row < chat_rows else self.code, rng, length + 1) for row in range(rows)]
        return np.stack([ids for ids, _ in cuts]).astype(np.int64), np.stack([wanted for _, wanted in cuts])


def cut(stream: Stream, rng: np.random.Generator, size: int) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """Half of the rows begin with a document, as every prompt does; the others anywhere, so that positions vary."""
    last = len(stream.ids) - size
    start = int(rng.integers(last))
    if rng.random() < 0.5:
        start = min(int(rng.choice(stream.starts)), last)
    return stream.ids[start : start + size], stream.wanted[start : start + size]


def build(tokenizer: PreTrainedTokenizerFast, chat_tokens: int, seed: int) -> Corpus:
    return Corpus(chat_stream(tokenizer, chat_tokens, seed), code_stream(tokenizer))


def save(corpus: Corpus, path: Path) -> None:
    arrays = {
        f"{name}_{field}": getattr(getattr(corpus, name), field)
        for name in ("chat", "code")
        for field in _FIELDS
    }
    np.savez(path, **arrays)


def load(path: Path) -> Corpus:
    with np.load(path) as arrays:
        chat, code = (Stream(*(arrays[f"{name}_{field}"] for field in _FIELDS)) for name in ("chat", "code"))
    return Corpus(chat, code)


_FIELDS = ("ids", "wanted", "starts")


def chat_stream(
    tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int, tasks: Sequence[Task] = TASKS
) -> Stream:
    """Only replies are predicted: what users say is random and would eat the capacity of a tiny model."""
    rng = random.Random(seed)
    shares = [task.share for task in tasks]
    documents: list[tuple[list[int], int]] = []
    total = 0
    while total < tokens:
        drawn = rng.choices(tasks, shares, k=ITEMS_PER_CHUNK)
        chunk = _encode_items(tokenizer, [task.draw_from(rng, "train") for task in drawn])
        documents += chunk
        total += sum(len(ids) for ids, _ in chunk)
    return _flatten(documents)


def _encode_items(tokenizer: PreTrainedTokenizerFast, items: list[Item]) -> list[tuple[list[int], int]]:
    """(ids, where the reply begins) of each item; prompt and reply meet at a special token, so they encode apart."""
    prompts = tokenizer([render_prompt(item) for item in items])["input_ids"]
    replies = tokenizer([item.reply + END for item in items])["input_ids"]
    return [(prompt + reply, len(prompt)) for prompt, reply in zip(prompts, replies, strict=True)]


def code_stream(tokenizer: PreTrainedTokenizerFast) -> Stream:
    encoded = tokenizer([text + END for text in training_files()])["input_ids"]
    return _flatten([(ids, 0) for ids in encoded])


def _flatten(documents: list[tuple[list[int], int]]) -> Stream:
    lengths = np.array([len(ids) for ids, _ in documents])
    wanted = [np.arange(len(ids)) >= reply_start for ids, reply_start in documents]
    ids = np.concatenate([np.array(ids, dtype=np.uint16) for ids, _ in documents])
    return Stream(ids, np.concatenate(wanted), np.cumsum(lengths) - lengths)
