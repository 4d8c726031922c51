"""The committed held-out items: a fixed sample of what training never saw."""

import json
import random
from pathlib import Path
from typing import Any

from .item import Item, Task
from .tasks import TASKS

HELDOUT_SEED = 5
ITEMS_PER_TASK = 40
DRAWS_PER_ITEM = 20


def heldout_items(per_task: int, seed: int = HELDOUT_SEED) -> dict[str, list[Item]]:
    """Up to `per_task` items of each task, no prompt twice; fewer where the grammar has no more."""
    return {task.name: distinct(task, per_task, random.Random(f"{seed}-{task.name}")) for task in TASKS}


def distinct(task: Task, count: int, rng: random.Random) -> list[Item]:
    """Held-out items, no prompt twice; fewer than `count` where the task has no more."""
    found: dict[str, Item] = {}
    for _ in range(count * DRAWS_PER_ITEM):
        item = task.draw_from(rng, "heldout")
        found.setdefault(json.dumps(item.messages), item)
        if len(found) == count:
            break
    return list(found.values())


def as_record(item: Item) -> dict[str, object]:
    """One line of the file: `messages` of a chat or `prompt` of raw text, and the answer where one can be checked."""
    asked = {"messages": item.messages} if item.chat else {"prompt": item.text}
    return {"task": item.task, **asked, "answer": item.answer}


def write_heldout(path: Path) -> None:
    items = (item for found in heldout_items(ITEMS_PER_TASK).values() for item in found)
    path.write_text("".join(json.dumps(as_record(item)) + "\n" for item in items))


def read_heldout(path: Path, per_task: int) -> dict[str, list[Item]]:
    """The first `per_task` items of each task; their replies are empty, for the file holds none."""
    found: dict[str, list[Item]] = {task.name: [] for task in TASKS}
    for line in path.read_text().splitlines():
        item = _from_record(json.loads(line))
        found[item.task].append(item)
    return {name: items[:per_task] for name, items in found.items()}


def _from_record(record: dict[str, Any]) -> Item:
    task, answer = record["task"], record["answer"]
    if "prompt" in record:
        return Item(task, record["prompt"], "", answer, chat=False)
    *history, last = ((turn["role"], turn["content"]) for turn in record["messages"])
    return Item(task, last[1], "", answer, history=tuple(history))


def heldout_path() -> Path:
    """Held-out tasks of this checkout, one JSON object per line."""
    return Path(__file__).resolve().parents[2] / "models/heldout.jsonl"
