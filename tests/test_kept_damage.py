"""Kept texts that somebody has changed: `opensled adapt` refuses them by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adapt.kept.kept_store import KeptStore
from adapt.kept.kept_text import KeptText
from lab.training.adapting.material import read_kept
from opensled.core.errors import UsageError, VocabularyMismatch

WORDS, IDS = "words", 2048


@pytest.mark.parametrize("damage", ["cut", "roles", "ids", "nan", "sums", "no archive"])
def test_damaged_texts_are_refused_by_name(tmp_path: Path, damage: str):
    """Training would fail in their midst, or learn nonsense."""
    store = KeptStore(tmp_path)
    top_ids = np.tile(np.arange(32, dtype=np.uint32), (2, 1))
    top = np.full((2, 32), np.nan if damage == "nan" else 0.0 if damage == "sums" else -4.0, np.float16)
    ids = (1, 2, 5_000_000 if damage == "ids" else 3)
    store.write(KeptText("a", 0.0, ids, 0 if damage == "roles" else 1, top_ids, top), WORDS)
    [path] = store.folder_of("a").glob("*.npz")
    content = path.read_bytes()
    path.write_bytes(content[:-40] if damage == "cut" else b"no" if damage == "no archive" else content)
    with pytest.raises(UsageError, match=f"{path.name} is damaged, remove it"):
        read_kept(store.folder_of("a"), WORDS, IDS)


def test_whole_texts_are_read(tmp_path: Path):
    store = KeptStore(tmp_path)
    rows = np.tile(np.arange(32, dtype=np.uint32), (2, 1)), np.full((2, 32), -4.0, np.float16)
    store.write(KeptText("a", 0.0, (1, 2, 3), 1, *rows), WORDS)
    [text] = read_kept(store.folder_of("a"), WORDS, IDS)
    assert text.ids.tolist() == [1, 2, 3] and text.roles.tolist() == [0, 2, 2]
    with pytest.raises(VocabularyMismatch):
        read_kept(store.folder_of("a"), "of another target", IDS)
