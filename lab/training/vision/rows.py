"""Pictures with their questions as rows of tokens, several questions a row.

In most rows every question sees the picture and nothing of the other questions, as if it were asked alone; the others
are dialogues, in which each turn sees what was said before.
"""

import random
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ..corpus import Stream, cut
from ..train_tokenizer import END, SPECIAL_TOKENS
from .canvas import PATCHES
from .questions import Question
from .recipe import VisionRecipe
from .scenes import Scene, draw, pixels
from .tokens import IMAGE_ID

USER_ID, ASSISTANT_ID = (SPECIAL_TOKENS.index(token) for token in ("<|user|>", "<|assistant|>"))
OPENING = [USER_ID, *[IMAGE_ID] * PATCHES]
SHARED = 0  # the part of a row that all its other parts see


@dataclass(frozen=True)
class Row:
    """A row has one id more than the model reads.

    `wanted`: which ids are predicted in training; `parts`: which positions see each other.
    """

    ids: NDArray[np.int64]
    wanted: NDArray[np.bool_]
    parts: NDArray[np.int64]
    positions: NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """`mask` [rows, 1, length, length]; `ids` and `wanted` are one longer; `pixels` and `marks` of the rows with a
    picture, which come first.
    """

    ids: Tensor
    wanted: Tensor
    positions: Tensor
    mask: Tensor
    pixels: Tensor
    marks: Tensor


class RowMaker:
    """Batches of a recipe: what a step reads depends on its number and the seed alone."""

    def __init__(self, recipe: VisionRecipe, tokenizer: PreTrainedTokenizerFast, text: Stream) -> None:
        self._recipe, self.tokenizer, self._text = recipe, tokenizer, text

    def batch(self, step: int) -> Batch:
        recipe = self._recipe
        rng = random.Random(f"{recipe.seed}-{step}")
        scenes = [draw(rng, "train") for _ in range(recipe.pictures)]
        rows = [self._row(rng, scene) for scene in scenes]
        draws = np.random.default_rng((recipe.seed, step))
        rows += [_text_row(*cut(self._text, draws, recipe.length + 1)) for _ in range(recipe.texts)]
        ids, wanted, parts, positions = (
            torch.from_numpy(np.stack([getattr(row, field) for row in rows]))
            for field in ("ids", "wanted", "parts", "positions")
        )
        pictures = torch.from_numpy(np.stack([pixels(scene.image) for scene in scenes]))
        marks = torch.from_numpy(np.stack([scene.marks for scene in scenes]))
        return Batch(ids, wanted, positions[:, :-1], visible(parts[:, :-1]), pictures, marks)

    def _row(self, rng: random.Random, scene: Scene) -> Row:
        questions = rng.sample(scene.questions, len(scene.questions))
        asked, said = self._encode(questions)
        dialogue = rng.random() < self._recipe.dialogue_share
        return picture_row(asked, said, self._recipe.length + 1, dialogue)

    def _encode(self, questions: list[Question]) -> tuple[list[list[int]], list[list[int]]]:
        texts = chain([question.text + END for question in questions], [q.reply + END for q in questions])
        encoded: list[list[int]] = self.tokenizer(list(texts))["input_ids"]
        return encoded[: len(questions)], encoded[len(questions) :]


def picture_row(asked: list[list[int]], said: list[list[int]], size: int, dialogue: bool) -> Row:
    """A picture and as many of its questions as find room. What is left over is its own part and never wanted."""
    ids, wanted = list(OPENING), [False] * len(OPENING)
    parts, positions = [SHARED] * len(OPENING), list(range(len(OPENING)))
    for number, (question, reply) in enumerate(zip(asked, said, strict=True)):
        turn = [USER_ID] if dialogue and number else []
        new = [*turn, *question, ASSISTANT_ID, *reply]
        if len(ids) + len(new) > size:
            continue
        first = len(ids) if dialogue else len(OPENING)
        parts += [SHARED if dialogue else number + 1] * len(new)
        positions += range(first, first + len(new))
        ids += new
        wanted += [False] * (len(new) - len(reply)) + [True] * len(reply)
    rest = size - len(ids)
    return Row(
        np.array(ids + [0] * rest),
        np.array(wanted + [False] * rest),
        np.array(parts + [len(asked) + 1] * rest),
        np.array(positions + [0] * rest),
    )


def _text_row(ids: NDArray[np.uint16], wanted: NDArray[np.bool_]) -> Row:
    size = len(ids)
    return Row(ids.astype(np.int64), wanted, np.full(size, SHARED), np.arange(size))


def visible(parts: Tensor) -> Tensor:
    """[rows, 1, length, length]: each position sees, of what lies before it, its own part and the shared one."""
    size = parts.shape[1]
    alike = parts[:, :, None] == parts[:, None, :]
    causal = torch.ones(size, size, dtype=torch.bool).tril()
    return ((alike | (parts == SHARED)[:, None, :]) & causal)[:, None]
