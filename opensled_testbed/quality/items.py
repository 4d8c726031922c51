"""The questions: items of tasks whose answers can be checked, none of which any training has seen."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from opensled.errors import UsageError
from opensled_training.item import Item, Task
from opensled_training.questions import QUESTIONS
from opensled_training.tasks import TASKS

TINY = "tiny"
DRAWS_PER_ITEM = 20


def tasks_for(model: str, wanted: str = "") -> list[Task]:
    """The kinds that this target is asked, or those of them between commas. Raises UsageError for unknown ones."""
    known = {task.name: task for task in (TASKS if model == TINY else QUESTIONS) if task.check}
    names = [name.strip() for name in wanted.split(",") if name.strip()] or list(known)
    for name in names:
        if name not in known:
            raise UsageError(f"no task {name[:80]!r} for {model}; choose from {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def fresh_items(task: Task, count: int, seed: int) -> list[Item]:
    """Held-out items, no prompt twice; fewer than `count` where the task has no more."""
    rng = random.Random(f"quality-{seed}-{task.name}")
    found: dict[str, Item] = {}
    for _ in range(count * DRAWS_PER_ITEM):
        item = task.draw_from(rng, "heldout")
        found.setdefault(json.dumps(item.messages), item)
        if len(found) == count:
            break
    return list(found.values())


def in_turn(rules: Sequence[str], index: int) -> list[str]:
    """The rules in the order for item `index`: each is first, second, ... equally often."""
    start = index % len(rules)
    return [*rules[start:], *rules[:start]]
