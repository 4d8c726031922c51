"""`opensled quality`: what a loose rule costs and what it brings."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.testbed.processes import exit_on_signals
from lab.testbed.provenance import provenance
from lab.testbed.quality.asking import Asked, Asking
from lab.testbed.quality.config import QualityConfig
from lab.testbed.quality.figures import Row, rows_of
from lab.testbed.quality.items import tasks_for
from lab.testbed.quality.kept import ANSWERS, KeptAnswers
from lab.testbed.quality.page import page
from lab.testbed.quality.site import site
from lab.testbed.quality.table import table
from lab.training.item import Task
from opensled.process.logs import tell

Answers = Mapping[str, Sequence[Asked]]


def quality(config: QualityConfig) -> int:
    """Ask, judge, show, write. Raises UsageError for unknown tasks and rules, OpenSledError for a lost server."""
    exit_on_signals()
    rules, tasks = config.rules, tasks_for(config.model, config.tasks)
    kept = KeptAnswers(config, {**provenance(), "seed": config.seed})
    if len(kept):
        tell(f"{len(kept)} items are answered in {config.out} already")
    asked = asyncio.run(_ask(config, tasks, kept))
    rows, names = rows_of(asked, rules, config.seed), _names(asked, rules)
    document = _document(config, rows, names, kept.origin)
    if config.out:
        _write(Path(config.out).expanduser(), document, page(asked, rows, names, kept.origin))
    print(json.dumps(document) if config.json else table(rows, names))
    return 0


async def _ask(config: QualityConfig, tasks: Sequence[Task], kept: KeptAnswers) -> dict[str, list[Asked]]:
    async with site(config) as devices:
        drafter = next(iter(devices.values())).drafter_name
        tell(f"{config.model} answers under {len(devices)} rules; every device drafts with {drafter}")
        asking = Asking(config, devices, kept)
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


def _write(folder: Path, document: Mapping[str, Any], text: str) -> None:
    (folder / "quality.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    (folder / "quality.html").write_text(text, "utf-8")
    tell(f"written: {folder}/quality.json, {ANSWERS}, quality.html")
