"""What a device learned of a server and a draft, kept in a file until its next start; it holds no text and no names.

One file for each server, target, drafter, rule and policy. It is written as a whole, so that of two devices at once one
wins. Everything works without it: whatever is wrong with it costs a line in the log.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_client.config import DeviceConfig
from edge_client.known_drafts import settled
from edge_client.lengths.base import DraftLengthPolicy
from edge_client.lengths.learned import Learned
from hw_profiles.fading import kept
from opensled.files import write_whole
from opensled.messages import ModelInfo
from opensled.store import cache_folder

log = logging.getLogger(__name__)

VERSION = 1
MOST_FILES, MOST_BYTES = 32, 8192
HALF_LIFE_S = 86400.0  # after a day half the weight is left (chosen)
EVERY_S = 60.0  # between two writes while a device works


class LengthMemory:
    """The file for the present target of a device; `clock`: seconds since 1970."""

    def __init__(self, config: DeviceConfig, clock: Callable[[], float] = time.time) -> None:
        self._config, self._clock = config, clock
        self._path: Path | None = None
        self._written, self._due = "", 0.0  # the latest content, and when the next may be written

    def recall(self, policy: DraftLengthPolicy, info: ModelInfo, drafter: str) -> None:
        """Give `policy` what was learned of that target with that drafter, and keep from now on what it learns."""
        self._path, self._due = self._place(info, drafter), self._clock() + EVERY_S
        try:
            with self._path.open("rb") as file:
                document = json.loads(file.read(MOST_BYTES))
            age_s = max(0.0, self._clock() - _seconds(document))
            policy.recall(Learned.of(document["learned"]).faded(kept(age_s, HALF_LIFE_S)))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            log.warning(
                "%s is damaged or of another version (%s); draft lengths are learned anew, and it is written anew",
                self._path,
                error,
            )

    def keep(self, policy: DraftLengthPolicy, ends: bool = False) -> None:
        """Write what `policy` has learned, at most every EVERY_S, or now if the device `ends`."""
        now = self._clock()
        if self._path is None or not (ends or now >= self._due):
            return
        learned, self._due = policy.learned(), now + EVERY_S
        content = json.dumps(learned.as_json()) if learned else ""
        if content in ("", self._written):
            return
        self._written = content
        try:
            document = f'{{"version": {VERSION}, "seconds": {now:.0f}, "learned": {content}}}\n'
            write_whole(self._path, document.encode(), private=True)
            _forget_oldest(self._path.parent)
        except OSError as error:
            log.warning(
                "what was learned of draft lengths cannot be kept in %s: %s", self._path, error.strerror
            )

    def _place(self, info: ModelInfo, drafter: str) -> Path:
        config = settled(self._config, info.model_id)
        facts = [config.server, info.model_id, info.fingerprint, drafter, config.draft_model, config.rule]
        facts += [config.stop, str(config.look_ahead), str(config.threads)]
        name = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
        return cache_folder() / "draft-lengths" / f"{name}.json"


def _seconds(document: dict[str, Any]) -> float:
    """When the file was written. Raises ValueError, or TypeError for what is no document."""
    seconds = document["seconds"]
    if document["version"] != VERSION:
        raise ValueError("another version")
    if not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        raise ValueError("no time")
    return float(seconds)


def _forget_oldest(folder: Path) -> None:
    ages = {file: file.stat().st_mtime for file in folder.glob("*.json")}
    for file in sorted(ages, key=ages.__getitem__)[:-MOST_FILES]:
        file.unlink(missing_ok=True)
