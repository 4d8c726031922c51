"""The questions: items of tasks whose answers can be checked, none of which any training has seen."""

import random
from collections.abc import Sequence
from dataclasses import replace

from lab.training.heldout import distinct
from lab.training.item import Item, Task
from lab.training.questions import QUESTIONS
from lab.training.questions.replies import is_worked_out
from lab.training.tasks import TASKS
from opensled.core.errors import UsageError

TINY = "tiny"
# Training checks the last number alone; a loose rule may also spoil the sum before it.
STRICTER = {"arithmetic": is_worked_out}


def tasks_for(model: str, wanted: str = "") -> list[Task]:
    """The kinds that this target is asked, or those of them between commas. Raises UsageError for unknown ones."""
    known = {task.name: task for task in (TASKS if model == TINY else QUESTIONS) if task.check}
    known |= {name: replace(known[name], check=check) for name, check in STRICTER.items() if name in known}
    names = [name.strip() for name in wanted.split(",") if name.strip()] or list(known)
    for name in names:
        if name not in known:
            raise UsageError(f"no task {name[:80]!r} for {model}; choose from {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def fresh_items(task: Task, count: int, seed: int) -> list[Item]:
    """Held-out items, no prompt twice; fewer than `count` where the task has no more."""
    return distinct(task, count, random.Random(f"quality-{seed}-{task.name}"))


def in_turn(rules: Sequence[str], index: int) -> list[str]:
    """The rules in the order for item `index`: each is first, second, ... equally often."""
    start = index % len(rules)
    return [*rules[start:], *rules[:start]]
