"""Folders of published heads that come from strangers: anything in the config, the tensors and their files."""

from __future__ import annotations

import contextlib
import json
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from opensled.errors import OpenSledError
from tests.fuzz.bodies import changed_json
from tests.fuzz.choices import Choices
from tests.published_folders import WEIGHTS, config_of, publish
from verify_server.heads.speculators_config import CONFIG
from verify_server.heads.speculators_file import load_published

TARGET = SimpleNamespace(vocab_size=61, hidden_size=16)


def published_head(data: bytes) -> None:
    """A folder of the `speculators` format; what is loaded drafts ids of its target and computes finite weights."""
    choose, (folder, weights, known) = Choices(data), _whole()
    config = json.dumps(known).encode() if choose.flag() else changed_json(known, choose)
    (folder / CONFIG).write_bytes(config)
    (folder / WEIGHTS).write_bytes(_damaged(weights, choose))
    with contextlib.suppress(OpenSledError):
        found = load_published(folder)
        ids, shape = found.draft_ids, found.head.shape
        assert len(ids) == shape.vocabulary and 0 <= ids.min() <= ids.max() < shape.target_vocabulary
        assert all(weight.isfinite().all() for weight in found.head.parameters())


def _damaged(weights: bytes, choose: Choices) -> bytes:
    """Some bytes of the tensors, or of what says where they are; mostly none."""
    changed = bytearray(weights)
    for _ in range(max(0, choose.byte() % 8 - 4)):
        header = int.from_bytes(weights[:8], "little")
        at = choose.below(8 + header) if choose.flag() else choose.below(len(weights))
        changed[at] = choose.byte()
    return bytes(changed[: choose.below(len(changed))] if choose.byte() > 250 else changed)


@cache
def _whole() -> tuple[Path, bytes, dict[str, object]]:
    folder, config = Path(tempfile.mkdtemp(prefix="opensled-fuzz-")), config_of(TARGET, 23, (0, 2, 4))
    publish(folder, config)
    return folder, (folder / WEIGHTS).read_bytes(), config
