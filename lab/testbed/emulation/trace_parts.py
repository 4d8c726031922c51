"""Recorded items of a run that may be ended: one JSON line each, appended when it is done, below a head."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from lab.testbed.traces import ItemTrace, trace_of
from opensled.core.errors import UsageError

Head = Mapping[str, str]


def read_part(path: Path, head: Head) -> list[ItemTrace]:
    """The items of a .part file, none without one; raises UsageError for a file of another recording.

    A last line that was cut off when the run ended is left out.
    """
    if not path.is_file():
        return []
    first, *lines = path.read_text("utf-8").split("\n")
    if first != json.dumps(dict(head)):
        raise UsageError(
            f"{path} belongs to another recording ({first[:200]}); finish that one, or remove the file"
        )
    whole = lines[:-1]
    if lines and lines[-1]:
        path.write_text("\n".join([first, *whole, ""]), "utf-8")
    return [trace_of(json.loads(line)) for line in whole]


def add_to_part(path: Path, head: Head, trace: ItemTrace) -> None:
    """Append one item."""
    new = not path.is_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write((json.dumps(dict(head)) + "\n" if new else "") + json.dumps(asdict(trace)) + "\n")
