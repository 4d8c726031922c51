"""PipeSD in the emulated cells: tuned for each, and measured where it is asked for."""

from __future__ import annotations

import pytest

from lab.benchmarks import regimes
from lab.benchmarks.cell_run import CellRun, Scale
from lab.benchmarks.cell_turns import short_items, shortened
from lab.testbed.baselines import OF_HEADS, PARTS, USUAL
from lab.testbed.cells import CELLS
from lab.testbed.recordings import BUNDLED
from lab.testbed.traces import read_traces
from lab.testbed.tuning import TRIGGERS, Tuning

SMALL = Scale(repeats=1, max_tokens=12, max_users=4)


def cell_run() -> CellRun:
    """Simulated only."""
    traces = shortened(read_traces(BUNDLED), SMALL.max_tokens)
    return CellRun(CELLS[1], SMALL, short_items(SMALL.max_tokens), traces, None, say=lambda line: None)


def test_a_baseline_is_tuned_by_its_own_settings_for_the_cell(monkeypatch):
    """Most users served, and of those settings the one that writes most tokens."""

    def look(self, baseline, tuning):
        served = 4 if tuning.newest in (0.0, 0.5) else 3
        looked.setdefault(baseline, []).append(tuning)
        return {
            "served": served,
            "output_throughput": tuning.draft_length - tuning.product,
            "mean_e2el_ms": 1,
        }

    looked = {}
    monkeypatch.setattr(CellRun, "_look", look)
    run = cell_run()
    names = ("centralized", "sled-continuous", "pipesd")
    run.tunings = {name: run._tuned(name) for name in names}
    assert len(looked["sled-continuous"]) == 3 and set(looked["pipesd"]) == set(TRIGGERS)
    assert "centralized" not in looked
    assert run._told() == {
        "draft_lengths": {"sled-continuous": 8},
        "triggers": {"pipesd": {"draft_length": 8, "product": 0.0625, "newest": 0.5}},
    }


@pytest.mark.long
def test_pipesd_takes_its_turns_in_a_cell_where_it_is_asked_for():
    """Its rounds are other ones than those of a fixed length, at the same requests."""
    entry = cell_run().all(("sled-continuous", "pipesd"))
    fixed, dual = (run["summary"] for run in entry["simulated"])
    assert [run["baseline"] for run in entry["simulated"]] == ["sled-continuous", "pipesd"]
    assert fixed["drafted_tokens"] > 0 < dual["drafted_tokens"]
    assert fixed["tokens_per_round"] != dual["tokens_per_round"]
    assert Tuning(**entry["triggers"]["pipesd"]) in TRIGGERS


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], USUAL),
        (["--pipesd"], (*USUAL, "pipesd")),
        (["--parts"], (*USUAL, *PARTS)),
        (["--heads"], (*USUAL, *OF_HEADS)),
    ],
    ids=["usual", "pipesd", "parts", "heads"],
)
def test_regimes_measure_pipesd_where_they_are_told(words, names, monkeypatch):
    asked = []

    def measured(scale, run, source, baselines, cell):
        asked.append(baselines)
        return {"id": cell.id, "runs": [], "simulated": []}

    monkeypatch.setattr(regimes, "_measured", measured)
    assert regimes.main(["--quick", "--simulated", "--cells", "2", "--jobs", "1", *words]) == 0
    assert asked == [names]
