"""A device's head and what strangers give it: folders whose files do not fit, hidden states that no target has.

Run: pytest tests/test_device_head_trust.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edge_client.draft_job import DraftJob
from edge_client.drafters.base import Drafter
from edge_client.drafters.head import HeadFactory
from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from opensled.drafting.head_drafts import Drawing, block_of, frame_trie
from opensled.drafting.head_form import ABOUT, PARTS
from opensled.errors import UnsupportedModel
from opensled.features import LARGEST_SCALE, MAX_BYTES, FeatureRows
from opensled.messages import SamplingParams
from opensled.noise import noise_key
from opensled.sampling import sampler
from tests.fuzz.device_heads import small_head
from tests.test_device_heads import rows_at

KEY = noise_key(7)


@pytest.fixture(params=[False, True], ids=["places", "frames"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small head."""
    return small_head(tmp_path / "whole", request.param)


@pytest.mark.parametrize("changed", ["length", "size", "has_blank", "ids", "bias"])
def test_files_that_do_not_belong_together_are_refused_at_the_start(
    folder: Path, tmp_path: Path, changed: str
) -> None:
    """And not in the midst of an answer."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    about, arrays = json.loads((folder / ABOUT).read_text()), dict(np.load(folder / PARTS))
    if changed == "ids":
        arrays = {name: array[:-1] for name, array in arrays.items()}
    elif changed == "bias":
        arrays |= {"after": np.zeros((len(arrays["ids"]), 3), np.float32)}
    else:
        about[changed] = not about[changed] if changed == "has_blank" else about[changed] + 1
    (tmp_path / ABOUT).write_text(json.dumps(about))
    np.savez(tmp_path / PARTS, **arrays)
    with pytest.raises(UnsupportedModel, match=r"do not fit|a bias"):
        HeadFactory(str(tmp_path))


@pytest.mark.parametrize("scale", [1e4, 1e12, LARGEST_SCALE])
@pytest.mark.parametrize("temperature", [0.0, 1e-6, 0.8])
def test_states_that_no_target_has_cost_drafts_only(folder: Path, scale: float, temperature: float) -> None:
    """A hostile server chooses them: what is drafted from them are ids with chances, or nothing."""
    factory = HeadFactory(str(folder), 1)
    known, drafter = factory._parts.ids.tolist(), factory.create()
    params = SamplingParams(temperature=temperature, max_tokens=9)
    drafter.begin([known[5]] * 9, sampler(params, KEY, False, 9))
    count = len(factory.features)
    drafter.features(rows_at(factory, 0, 8, scales=(scale,) * (8 * count)))
    for token in (*drafter.propose(), *[node.token for node in drafter.propose_tree()]):
        assert token.id in known and 0 <= token.confidence <= 1


def test_what_is_never_drawn_has_chances_all_the_same() -> None:
    """Chances of 0 were once divided by each other: a draft with a confidence that is no number."""
    frames = np.full((3, 4), -1e30, np.float32)
    frames[:, 1] = 0.0
    block = block_of(frame_trie(frames, np.arange(3), Drawing(KEY, 5, 1e-6)), np.arange(3), 5, True)
    assert all(0 <= token.confidence <= 1 for token in block.tokens)


def test_rows_that_wait_for_a_drafter_that_rests_are_bounded() -> None:
    """A server sends as much as it may with each verdict, and the device never drafts."""
    given: list[int] = []

    class Reads(NoneDrafter):
        def features(self, rows: FeatureRows) -> None:
            given.append(rows.first)

    drafter: Drafter = Reads()
    job = DraftJob(drafter, FixedLength(0), 3)
    for first in range(40):
        job.features([FeatureRows(first, MAX_BYTES // 8, (1.0,), bytes(MAX_BYTES // 8), (1,))])
    assert sum(len(run.data) for run in job._rows) <= 2 * MAX_BYTES
    job._commit(())
    assert given == list(range(24, 40)), "the newest"
