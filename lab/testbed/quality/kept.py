"""The answers of a run in its folder, written as they come: a run that is stopped goes on where it was."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab.testbed.quality.asking import Asked, Reply
from lab.testbed.quality.config import QualityConfig
from lab.training.item import Item
from opensled.core.errors import UsageError

ANSWERS, RUN = "answers.jsonl", "run.json"
FREE = ("items", "tasks", "out", "json")  # options that change no answer


class KeptAnswers:
    """Answered items by task and number; without a folder nothing is written, and nothing was."""

    def __init__(self, config: QualityConfig, origin: Mapping[str, Any]) -> None:
        """`origin`: of the answers to come. Raises UsageError for a folder with answers of another run."""
        self._folder = Path(config.out).expanduser() if config.out else None
        self._found: dict[tuple[str, int], dict[str, Any]] = {}
        self._settings = {name: value for name, value in asdict(config).items() if name not in FREE}
        self.origin = dict(origin)  # of the first answers
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)  # before minutes have passed
            self._require_same(self._folder / RUN, self._settings)
            self._read(self._folder / ANSWERS)

    def _require_same(self, path: Path, settings: dict[str, Any]) -> None:
        if not path.exists():  # nothing was answered yet
            return
        there = json.loads(path.read_text("utf-8"))
        if other := [name for name, value in settings.items() if there["settings"].get(name) != value]:
            raise UsageError(
                f"{path.parent} has answers of a run with another {' and '.join(other)}; name another folder with --out"
            )
        self.origin = there["provenance"]

    def _read(self, path: Path) -> None:
        """All whole lines: the last one of a run that was killed may be a part."""
        lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
        for line in lines:
            if line.endswith("\n"):
                known = json.loads(line)
                self._found[known["task"], known["number"]] = known
        if lines and not lines[-1].endswith("\n"):
            path.write_text("".join(lines[:-1]), "utf-8")

    def __len__(self) -> int:
        return len(self._found)

    def get(self, task: str, number: int, item: Item) -> Asked | None:
        """What was answered to that very question."""
        known = self._found.get((task, number))
        if known is None or known["question"] != item.text:
            return None
        return Asked(item, {rule: _reply(fields) for rule, fields in known["replies"].items()})

    def keep(self, task: str, number: int, asked: Asked) -> None:
        """Write an item down with all its answers."""
        if self._folder is None:
            return
        if not self._found:
            run = {"settings": self._settings, "provenance": self.origin}
            (self._folder / RUN).write_text(json.dumps(run, indent=1) + "\n", "utf-8")
        line = {
            "task": task,
            "number": number,
            "question": asked.item.text,
            "answer": asked.item.answer,
            "replies": {rule: {"text": reply.text, **asdict(reply)} for rule, reply in asked.replies.items()},
        }
        with (self._folder / ANSWERS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._found[task, number] = line


def _reply(fields: Mapping[str, Any]) -> Reply:
    known = {name: value for name, value in fields.items() if name != "text"}
    pieces = tuple((text, bool(loose)) for text, loose in fields["pieces"])
    return Reply(**{**known, "pieces": pieces, "ids": tuple(fields["ids"])})
