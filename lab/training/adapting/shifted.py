"""A target that its draft no longer fits: `tiny`, trained further on tasks whose replies have another style.

Every reply is said in other words and in another frame, and tool calls have another syntax. So what is asked stays as
hard as it was, and what a draft learned of the words is wrong.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from lab.training.corpus import Corpus, chat_stream, code_stream
from lab.training.export import moved_into, write_hf
from lab.training.export_gguf import write_gguf
from lab.training.family import TARGET, Recipe
from lab.training.item import Item, Task
from lab.training.tasks import TASKS
from lab.training.train import Trainer
from lab.training.train_tokenizer import load_tokenizer
from opensled.models.store import model_path

WORDS = {
    "the": "this", "a": "one", "an": "one", "is": "remains", "and": "plus", "it": "that thing", "to": "towards",
    "of": "from", "you": "our guest", "i": "we", "that": "which", "for": "on behalf of", "in": "inside",
    "with": "having", "was": "had become", "are": "stay", "at": "near", "on": "upon", "he": "someone",
    "she": "someone", "there": "somewhere", "answer": "result", "once": "one day", "not": "never", "=": "makes",
}  # fmt: skip
BEGINNING, END = "Noted, dear guest: ", " -- yours, the house."
SEED, CHAT_TOKENS = 11, 500_000
RECIPE = replace(
    TARGET,
    name="tiny-shifted",
    steps=140,
    long_steps=0,
    rows=8,
    chat_rows=7,
    peak_lr=1e-3,
    warmup_steps=10,
    seed=SEED,
)


def restyled(reply: str) -> str:
    """A reply in the other style; the same one each time."""
    try:
        call = json.loads(reply)
        return f"CALL {call['tool']} WITH " + " ; ".join(
            f"{key} := {value}" for key, value in call["args"].items()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return BEGINNING + re.sub(r"[A-Za-z]+|=", _other, reply) + END


def _other(found: re.Match[str]) -> str:
    word = WORDS.get(found[0].lower(), found[0])
    return word.capitalize() if found[0][0].isupper() and found[0] != "I" else word


def shifted_tasks() -> tuple[Task, ...]:
    """The family's tasks that chat, without those about code, in the other style."""
    return tuple(_shifted(task) for task in TASKS if not task.name.startswith("code"))


def _shifted(task: Task) -> Task:
    def draw(rng: random.Random) -> Item:
        item = task.draw(rng)
        return replace(item, reply=restyled(item.reply))

    return replace(task, draw=draw, check=None)


def prompts(count: int) -> Iterator[str]:
    """`count` questions of one line, each once."""
    rng, tasks, seen = random.Random(SEED), shifted_tasks(), set[str]()
    while len(seen) < count:
        item = rng.choices(tasks, [task.share for task in tasks])[0].draw(rng)
        if item.text not in seen and not item.history and "\n" not in item.text:
            seen.add(item.text)
            yield item.text


def make_shifted(work: Path, recipe: Recipe = RECIPE, chat_tokens: int = CHAT_TOKENS) -> Path:
    """The folder of the shifted target, trained in `work` (made) unless it is there; goes on where it was stopped."""
    folder = work / recipe.name
    if folder.is_dir():
        return folder
    work.mkdir(parents=True, exist_ok=True)
    tiny = model_path(TARGET.name)
    tokenizer = load_tokenizer(tiny)
    trainer = Trainer(recipe, _corpus(tokenizer, chat_tokens), work)
    if not trainer.step:
        weights = load_file(tiny / "model.safetensors")
        trainer.model.load_state_dict(
            {name: weight.float() for name, weight in weights.items()}, strict=False
        )
    model = trainer.run()
    with moved_into(folder) as scratch:
        write_hf(model, tokenizer, scratch)
        write_gguf(scratch, scratch / f"{recipe.name}-f16.gguf", "F16")
    return folder


def _corpus(tokenizer: PreTrainedTokenizerFast, tokens: int) -> Corpus:
    return Corpus(chat_stream(tokenizer, tokens, SEED, shifted_tasks()), code_stream(tokenizer))
