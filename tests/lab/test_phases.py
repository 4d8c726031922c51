"""OpenSLED over the best of the others, cold and in steady state. Run: pytest tests/lab/test_phases.py"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.benchmarks import phases
from lab.benchmarks.grid_place import OURS, Place
from lab.testbed.baselines import OPENSLED, RIVALS
from lab.testbed.load.records import Arrival, RequestRecord, RunResult
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from opensled.core.errors import UsageError


def test_the_first_seconds_are_told_from_those_after_them() -> None:
    arrivals = [Arrival(1.0, 10), Arrival(4.9, 5), Arrival(5.0, 20), Arrival(19.0, 40), Arrival(20.0, 99)]
    result = RunResult("simulated", 0.0, 20.0, [RequestRecord(0, 0, "a", 0.0, arrivals=arrivals)])
    assert phases.rates_of(result) == {"whole": 75 / 20, "first": 3.0, "steady": 4.0}


def test_ratios_are_paired_by_seed_with_the_best_on_average() -> None:
    rates = {name: [1.0, 1.0] for name in (*RIVALS, *OURS)} | {
        "server-sd": [10.0, 20.0],
        "centralized": [19.0, 1.0],
        OPENSLED: [9.0, 18.0],
    }
    found = phases.ratios(rates, RIVALS)
    assert found["best"] == "server-sd" and found[OPENSLED] == [0.9, 0.9, 0.9]
    assert phases.ratios({name: [0.0, 0.0] for name in (*RIVALS, *OURS)}, RIVALS) == {}


def test_a_fixed_length_is_the_best_of_a_few() -> None:
    """Where nearly every draft is right and the step is long, long ones are."""
    place = phases.LoadedPlace(Place("hub", "wifi-good", 10, RecordedDrafts("tiny", "0.95"), "pi-5"), 2)
    assert phases._tuning(place, "server-sd").draft_length == max(phases.LENGTHS)
    assert phases._tuning(place, "centralized").draft_length == 0


def test_pipesd_takes_part_where_drafts_say_how_sure_they_are() -> None:
    assert "pipesd" not in phases.rivals_of(RecordedDrafts("tiny", "0.6"))
    assert "pipesd" in phases.rivals_of(RecordedDrafts("tiny"))


@pytest.mark.long
def test_the_program_writes_every_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--quick", "--regimes", "hub", "--users", "2", "--pair", "tiny", "--out", str(tmp_path)]
    assert phases.main(words) == 0
    shown = capsys.readouterr().out
    document = json.loads((tmp_path / "phases-tiny.json").read_text())
    [found] = document["places"]
    assert set(found["tokens_per_s"]["whole"]) == {*RIVALS, "pipesd", *OURS}
    assert set(found["thresholds"]) == {"pipesd"}
    for phase in phases.PHASES:
        mean, low, high = found["ratios"][phase][OPENSLED]
        assert low <= mean <= high
    assert all(rate > 0 for rate in found["tokens_per_s"]["steady"].values())
    assert document["facts"]["seeds"] == 2
    assert all(f"| {phase} |" in shown for phase in phases.PHASES)


def test_a_regime_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert phases.main(["--regimes", "steam"]) == UsageError.exit_code
    assert "steam" in capsys.readouterr().err
