"""How good `tiny-vision` is: right answers to questions about scenes that training never drew, and to chats without a
picture.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from lab.training.heldout import heldout_path

from ..family import END_ID
from ..heldout import read_heldout
from ..item import Item, Task
from ..tasks import TASKS
from ..train_tokenizer import END, render_prompt
from .questions import KINDS, Question, is_right
from .rows import ASSISTANT_ID, OPENING
from .scenes import Scene, draw, pixels

SCENES_SEED = 101
BATCH = 50
MAX_NEW_TOKENS = 64
MAX_TEXT_TOKENS = 128


@dataclass(frozen=True)
class Prompt:
    """What is read before the reply, and the picture if there is one, [3, side, side]."""

    ids: list[int]
    pixels: Tensor | None = None


@dataclass(frozen=True)
class KindScore:
    """`accuracy` is a share between 0 and 1, of greedy decoding."""

    kind: str
    items: int
    accuracy: float


def evaluate(
    model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, items: int
) -> list[KindScore]:
    """`items` of each kind, and at most 40 of each kind of chat; what is asked goes to standard error."""
    asked = heldout_questions(items)
    scores = [_score_pictures(model, tokenizer, kind, asked[kind]) for kind in KINDS]
    chats = read_heldout(heldout_path(), items)
    return scores + [_score_text(model, tokenizer, task, chats[task.name]) for task in TASKS if task.check]


def heldout_questions(items: int) -> dict[str, list[tuple[Scene, Question]]]:
    """The first of each kind, at most one of a kind from each scene."""
    rng = random.Random(SCENES_SEED)
    found: dict[str, list[tuple[Scene, Question]]] = {kind: [] for kind in KINDS}
    while min(map(len, found.values())) < items:
        scene = draw(rng, "heldout")
        for question in {q.kind: q for q in rng.sample(scene.questions, len(scene.questions))}.values():
            found[question.kind].append((scene, question))
    return {kind: pairs[:items] for kind, pairs in found.items()}


def _score_pictures(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    kind: str,
    asked: list[tuple[Scene, Question]],
) -> KindScore:
    prompts = [
        Prompt(
            [*OPENING, *tokenizer(question.text + END)["input_ids"], ASSISTANT_ID],
            torch.from_numpy(pixels(scene.image)),
        )
        for scene, question in asked
    ]
    replies = _replies(model, tokenizer, prompts, MAX_NEW_TOKENS)
    right = [is_right(question, reply) for (_, question), reply in zip(asked, replies, strict=True)]
    return _told(KindScore(kind, len(right), fmean(right)))


def _score_text(
    model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, task: Task, items: list[Item]
) -> KindScore:
    prompts = [Prompt(tokenizer(render_prompt(item))["input_ids"]) for item in items]
    replies = _replies(model, tokenizer, prompts, MAX_TEXT_TOKENS)
    check = task.check or str.__eq__
    right = [check(reply, item.answer or "") for item, reply in zip(items, replies, strict=True)]
    return _told(KindScore(f"text: {task.name}", len(right), fmean(right)))


def _told(score: KindScore) -> KindScore:
    print(f"{score.kind}: {score.items} asked", file=sys.stderr, flush=True)
    return score


def _replies(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[Prompt],
    longest: int,
) -> list[str]:
    """Greedy, without the end token."""
    written = [ids for batch in _batches(prompts) for ids in _generate(model, batch, longest)]
    replies: list[str] = tokenizer.batch_decode(written, skip_special_tokens=True)
    return replies


def _batches(prompts: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    for start in range(0, len(prompts), BATCH):
        yield prompts[start : start + BATCH]


@torch.inference_mode()
def _generate(
    model: LlavaForConditionalGeneration, prompts: Sequence[Prompt], longest: int
) -> list[list[int]]:
    """Prompts are padded on the left; all of them have a picture, or none."""
    width = max(len(prompt.ids) for prompt in prompts)
    ids = np.full((len(prompts), width), END_ID)
    mask = np.zeros((len(prompts), width), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt.ids) :] = prompt.ids
        mask[row, width - len(prompt.ids) :] = 1
    pictures = [prompt.pixels for prompt in prompts if prompt.pixels is not None]
    shown = {"pixel_values": torch.stack(pictures)} if pictures else {}
    written = model.generate(
        input_ids=torch.from_numpy(ids),
        attention_mask=torch.from_numpy(mask),
        max_new_tokens=longest,
        do_sample=False,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
        **shown,
    )
    new: list[list[int]] = written[:, width:].tolist()
    return new


def render(scores: Sequence[KindScore]) -> str:
    """A plain text table, one line a kind."""
    rows = [f"{score.kind:<20}{score.items:>6}{score.accuracy:>8.3f}" for score in scores]
    return "\n".join([f"{'kind':<20}{'items':>6}{'right':>8}", *rows])


def load(folder: Path) -> LlavaForConditionalGeneration:
    """An exported folder, in float32."""
    return LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
