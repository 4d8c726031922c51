"""The tasks that labels come from: those whose answers can be checked, of the training split."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.training.family import FAMILY
from lab.training.item import Item, Task
from lab.training.questions import QUESTIONS
from lab.training.tasks import TASKS
from opensled.core.errors import UsageError
from opensled.core.messages import ChatMessage
from opensled.text.tokenizer import tokenizer_of
from verify_server.text.gguf_text import GgufText


@dataclass(frozen=True)
class Question:
    """A prompt, and whether an answer to it is right."""

    task: str
    key: str  # items with the same one would give each other's answer away
    prompt: tuple[int, ...]
    solved: Callable[[Sequence[int]], bool]  # by the ids of an answer


class Questioner:
    """Endless questions, the same ones for the same seed; number i does not depend on those before it."""

    def __init__(self, tasks: Sequence[Task], text: GgufText, seed: int) -> None:
        self._tasks, self._text, self._seed = tasks, text, seed
        self._tokenizer = tokenizer_of(text.tokenizer_json)

    def question(self, number: int) -> Question:
        """The kinds take turns."""
        task = self._tasks[number % len(self._tasks)]
        item = task.draw_from(random.Random(f"{self._seed} {number}"), "train")
        check, wanted = task.check, item.answer or ""

        def solved(answer: Sequence[int]) -> bool:
            return check is not None and check(self._tokenizer.decode(list(answer)), wanted)

        return Question(task.name, item.key or item.text, self._prompt(item), solved)

    def _prompt(self, item: Item) -> tuple[int, ...]:
        if not item.chat:
            return self._text.encode(item.text)
        turns = [ChatMessage(turn["role"], turn["content"]) for turn in item.messages]
        return self._text.render(turns)


def tasks_of(target: str, names: str) -> list[Task]:
    """The tasks that a user names, separated by commas; "" = all that can be checked. Raises UsageError.

    The tiny family knows the tasks that it was trained on; other targets are asked lab/training/questions.
    """
    family = TASKS if Path(target).stem in FAMILY else QUESTIONS
    known = {task.name: task for task in family if task.check is not None}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(
            f"--tasks: no task {unknown[0]!r} whose answers can be checked; there are {', '.join(known)}"
        )
    return [known[name] for name in wanted or known]
