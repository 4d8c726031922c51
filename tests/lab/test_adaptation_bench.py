"""`python -m lab.benchmarks.adaptation`: what it reckons, what is committed, and (long) that a draft does win back.

Run: pytest tests/lab/test_adaptation_bench.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.benchmarks import adaptation
from lab.benchmarks.adaptation import ADAPTED, CASES, LOST, OWN, WANTED, recovered, section
from lab.benchmarks.program import FOLDER


def test_the_share_is_of_what_was_lost():
    own, lost, back = [{"x": 0.8}, {"x": 0.6}], [{"x": 0.4}, {"x": 0.2}], [{"x": 0.7}, {"x": 0.5}]
    assert recovered({OWN: own, LOST: lost, ADAPTED: back}, "x") == 0.75


def test_the_committed_figures_are_those_of_their_cases():
    document = json.loads((FOLDER / "adaptation.json").read_text())
    for name, share in document["recovered"].items():
        assert recovered(document["cases"], name) == share
    assert document["adapt"]["after"] == document["cases"][ADAPTED]
    assert document["recovered"]["acceptance"] >= WANTED
    assert document["adapt"]["gain"]["passes"]
    assert len(section(document)) == 2 + len(CASES) * 2 + 1


@pytest.mark.long
def test_a_draft_wins_back_what_a_shifted_target_cost_it(tmp_path: Path):
    words = ["--work", str(tmp_path / "work"), "--out", str(tmp_path), "--positions", "40000"]
    assert adaptation.main(words) == 0
    document = json.loads((tmp_path / "adaptation.json").read_text())
    assert document["recovered"]["acceptance"] >= WANTED
    assert (tmp_path / "work" / "draft" / "adapted.json").is_file()
