"""Small results of tests at load, kept for the next start in files that are named by all that the result depends on."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opensled.core.files import write_whole
from opensled.models.store import cache_folder

MAX_FILES, MAX_BYTES = 64, 1024


def place(facts: Sequence[object]) -> Path:
    """The file of a result that depends on these facts."""
    name = hashlib.blake2b("\n".join(map(str, facts)).encode(), digest_size=16).hexdigest()
    return cache_folder() / "self-tests" / f"{name}.json"


def recall(path: Path | None) -> dict[str, Any]:
    """{} for what is missing, damaged, or no object; `path` None = nothing is kept."""
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def keep(path: Path | None, document: Mapping[str, Any]) -> None:
    """Write it for the next start, and delete the oldest of many; a start needs neither."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps(document).encode(), private=True)
        ages = {file: file.stat().st_mtime for file in path.parent.glob("*.json")}
        for file in sorted(ages, key=ages.__getitem__)[:-MAX_FILES]:
            file.unlink()
