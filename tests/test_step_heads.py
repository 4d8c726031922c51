"""A recurrent head on a device: a step for each token that is asked for, and the newest row alone.

That it drafts what it does beside the target is in tests/test_device_heads.py. Run: pytest tests/test_step_heads.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_client.drafters.head import HeadFactory
from opensled.drafting.head_form import ABOUT, DRAFT, READ
from opensled.errors import UnsupportedModel
from opensled.features import FeatureRows
from opensled.messages import SamplingParams
from opensled.noise import noise_key
from opensled.sampling import sampler
from tests.test_device_heads import begun, rows_at
from tests.test_device_heads import exported as exported


@pytest.fixture(scope="module")
def stepping(exported: Callable[[str], Path]) -> HeadFactory:
    return HeadFactory(str(exported("owl")), 1)


def test_a_recurrent_head_takes_a_step_for_each_token_that_is_asked_for(
    stepping: HeadFactory, monkeypatch
) -> None:
    assert stepping.feature_rows == 1 and len(stepping.features) == 1
    known, steps = int(stepping._parts.ids[5]), []
    drafting = type(stepping._parts).drafting
    monkeypatch.setattr(
        type(stepping._parts), "drafting", lambda parts, given: steps.append(1) or drafting(parts, given)
    )
    drafter = begun(stepping, [known] * 9)
    drafter.features(rows_at(stepping, 7, 1))
    tokens = drafter.propose()
    first, second = next(tokens), next(tokens)
    assert len(steps) == 2 and 0 < second.confidence <= 1
    assert list(drafter.propose())[:2] == [first, second] and len(steps) == stepping.about.length
    drafter.commit([known])
    assert list(tokens) == [], "of an older text there is no more"
    assert list(drafter.propose()) == [], "the row behind the new text is not there"


def test_of_many_rows_a_recurrent_head_reads_the_newest(stepping: HeadFactory) -> None:
    """Such as a server sends that does not know Open.feature_rows."""
    known = int(stepping._parts.ids[5])
    many, one = begun(stepping, [known] * 40), begun(stepping, [known] * 40)
    rows = rows_at(stepping, 10, 29)
    many.features(rows)
    size = stepping.about.size
    one.features(FeatureRows(38, size, rows.scales[-1:], rows.data[-size:], rows.layers))
    assert list(many.propose()) == list(one.propose()) != []


def test_graphs_that_do_not_fit_are_refused(exported: Callable[[str], Path], tmp_path: Path) -> None:
    owl, ctc = exported("owl"), exported("ctc")
    for file in owl.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for name in (DRAFT, READ):
        (tmp_path / name).write_bytes((ctc / name).read_bytes())
        with pytest.raises(UnsupportedModel, match=r"do not fit.*export the head again"):
            HeadFactory(str(tmp_path))
        (tmp_path / name).write_bytes((owl / name).read_bytes())
    about = json.loads((owl / ABOUT).read_text())
    (tmp_path / ABOUT).write_text(json.dumps(about | {"size": about["size"] + 1}))
    with pytest.raises(UnsupportedModel, match="do not fit"):
        HeadFactory(str(tmp_path))


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 0.8])
def test_states_that_no_target_has_cost_the_draft_alone(stepping: HeadFactory, temperature: float) -> None:
    known, size = int(stepping._parts.ids[5]), stepping.about.size
    for scale in (1e36, 0.0, 1e-30):
        drafter = begun(stepping, [known] * 9)
        drafter._sampler = sampler(
            SamplingParams(temperature=temperature, max_tokens=9), noise_key(1), False, 9
        )
        drafter.features(FeatureRows(7, size, (scale,), bytes(range(128)) * (size // 128), stepping.features))
        for token in drafter.propose():
            assert 0 <= token.confidence <= 1
        list(drafter.propose_tree())
