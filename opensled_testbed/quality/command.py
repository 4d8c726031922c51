"""`opensled quality`: what a loose rule costs and what it brings."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from opensled.logs import tell
from opensled_testbed.processes import exit_on_signals
from opensled_testbed.provenance import provenance
from opensled_testbed.quality.asking import Asked, Asking
from opensled_testbed.quality.config import QualityConfig
from opensled_testbed.quality.figures import Row, rows_of
from opensled_testbed.quality.items import tasks_for
from opensled_testbed.quality.page import page
from opensled_testbed.quality.site import site
from opensled_testbed.quality.table import table
from opensled_training.item import Task

Answers = Mapping[str, Sequence[Asked]]


def quality(config: QualityConfig) -> int:
    """Ask, judge, show, write. Raises UsageError for unknown tasks and rules, OpenSledError for a lost server."""
    exit_on_signals()
    rules, tasks = config.rules, tasks_for(config.model, config.tasks)
    folder = Path(config.out).expanduser()
    folder.mkdir(parents=True, exist_ok=True)  # before minutes have passed
    origin = {**provenance(" ".join(["opensled", *sys.argv[1:]])), "seed": config.seed}
    asked = asyncio.run(_ask(config, tasks))
    rows, names = rows_of(asked, rules, config.seed), _names(asked, rules)
    document = _document(config, rows, names, origin)
    if config.out:
        _write(folder, document, asked, page(asked, rows, names, origin))
    print(json.dumps(document) if config.json else table(rows, names))
    return 0


async def _ask(config: QualityConfig, tasks: Sequence[Task]) -> dict[str, list[Asked]]:
    async with site(config) as devices:
        drafter = next(iter(devices.values())).drafter_name
        tell(f"{config.model} answers under {len(devices)} rules; every device drafts with {drafter}")
        asking = Asking(config, devices)
        return {task.name: await asking.of_task(task) for task in tasks}


def _names(asked: Answers, rules: Sequence[str]) -> dict[str, str]:
    """The rules as the server names them, with all their options."""
    replies = next(iter(asked.values()))[0].replies
    return {rule: replies[rule].rule or rule for rule in rules}


def _document(
    config: QualityConfig,
    rows: Mapping[str, Sequence[Row]],
    names: Mapping[str, str],
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "title": f"Quality of loose rules on {config.model}",
        "label": "real",
        "settings": asdict(config),
        "baseline": names[config.baseline],
        "rules": {names[rule]: [row.as_json() for row in found] for rule, found in rows.items()},
        "provenance": dict(origin),
    }


def _write(folder: Path, document: Mapping[str, Any], asked: Answers, text: str) -> None:
    (folder / "quality.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    (folder / "answers.jsonl").write_text("".join(f"{line}\n" for line in _lines(asked)), "utf-8")
    (folder / "quality.html").write_text(text, "utf-8")
    tell(f"written: {folder}/quality.json, answers.jsonl, quality.html")


def _lines(asked: Answers) -> Iterator[str]:
    """Every answer, so that other figures can be made of them."""
    for task, items in asked.items():
        for each in items:
            for reply in each.replies.values():
                known = {"task": task, "question": each.item.text, "answer": each.item.answer}
                yield json.dumps({**known, "text": reply.text, **asdict(reply), "pieces": None})
