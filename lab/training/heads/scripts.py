"""What a target is asked, so that it writes the texts that its heads learn from, and those that they are measured on.

The members of the tiny family know the tasks that they were trained on; other targets talk as in
lab/training/distil/self_prompts.py. A file gives prompts of its own, one a line.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from lab.training.distil.heldout_texts import heldout_prompts
from lab.training.distil.self_prompts import (
    ANSWER_TEMPERATURES,
    ANSWER_TOKENS,
    Frame,
    Given,
    Script,
    Written,
    draw,
)
from lab.training.family import FAMILY
from lab.training.heldout import heldout_path, read_heldout
from lab.training.item import Item, split_of
from lab.training.tasks import TASKS
from opensled.core.errors import NotFound
from opensled.core.messages import ChatMessage
from verify_server.text.gguf_text import GgufText

LENGTH = 960  # tokens of a text, at most; longer ones are not written
LONG_SHARE = 0.3  # of the scripts: those that quote
HELDOUT_TOKENS = 128  # of an answer, at most
HELDOUT_ITEMS = 12  # of each task of the tiny family


class Asker:
    """Scripts for one target. `data`: a file of prompts, one a line; None = the target's own ones."""

    def __init__(self, name: str, text: GgufText, data: Path | None = None) -> None:
        """Raises NotFound."""
        self._text, self._is_tiny = text, name in FAMILY
        self._lines = _lines(data) if data else []
        for split in ("train", "heldout") if data else ():
            if not any(self._fits(line) for line in self._lines if split_of(line) == split):
                raise NotFound(
                    f"{data}: all prompts are too long; a text has {LENGTH} tokens at most", "data"
                )

    def scripts(self, seed: int) -> Iterator[Script]:
        """Endless; the same ones for the same seed."""
        rng = random.Random(seed)
        if self._lines:
            return self._of_lines(rng)
        return self._of_tasks(rng) if self._is_tiny else self._of_chats(rng)

    def heldout(self) -> Iterator[Script]:
        """Scripts with greedy answers, whose prompts none of `scripts` has."""
        if self._lines:
            prompts = [(line, self._chat(line)) for line in self._lines if split_of(line) == "heldout"]
        elif self._is_tiny:
            tasks = read_heldout(heldout_path(), HELDOUT_ITEMS).values()
            prompts = [(item.task, self._asked(item)) for items in tasks for item in items]
        else:
            prompts = [
                (kind, self._chat(line)) for kind, lines in heldout_prompts().items() for line in lines
            ]
        for kind, prompt in prompts:
            yield Script(kind, (prompt, Written(HELDOUT_TOKENS, 0.0, answer=True)))

    def _of_lines(self, rng: random.Random) -> Iterator[Script]:
        lines = [line for line in self._lines if split_of(line) == "train"]
        while True:
            yield Script("line", (self._chat(rng.choice(lines)), _answer(rng)))

    def _of_tasks(self, rng: random.Random) -> Iterator[Script]:
        shares = [task.share for task in TASKS]
        while True:
            task = rng.choices(TASKS, shares)[0]
            yield Script(task.name, (self._asked(task.draw_from(rng, "train")), _answer(rng)))

    def _of_chats(self, rng: random.Random) -> Iterator[Script]:
        frame = Frame(self._text)
        while True:
            yield draw(frame, rng, rng.random() < LONG_SHARE)

    def _asked(self, item: Item) -> Given:
        if not item.chat:
            return Given(self._text.encode(item.text))
        return Given(
            self._text.render([ChatMessage(turn["role"], turn["content"]) for turn in item.messages])
        )

    def _fits(self, line: str) -> bool:
        return Script("line", (self._chat(line), Written(ANSWER_TOKENS, 0.0, answer=True))).most <= LENGTH

    def _chat(self, line: str) -> Given:
        return Given(self._text.render([ChatMessage("user", line)]))


def _answer(rng: random.Random) -> Written:
    return Written(ANSWER_TOKENS, rng.choice(ANSWER_TEMPERATURES), answer=True)


def _lines(path: Path) -> list[str]:
    """Of prompts, without the empty ones. Raises NotFound."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"{path} cannot be read as text with one prompt a line: {error}", "data") from error
    kept = [line for line in lines if line]
    if {split_of(line) for line in kept} != {"train", "heldout"}:
        raise NotFound(
            f"{path} has {len(kept)} prompts; some 100 are needed, of which a twentieth is held out", "data"
        )
    return kept
