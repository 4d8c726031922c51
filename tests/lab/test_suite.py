"""The bench suite: turns, void runs, agreement, regressions, one cell end to end."""

import json
import sys
from dataclasses import replace

import pytest

from lab.benchmarks import regimes
from lab.benchmarks.agreement import compared, errors
from lab.benchmarks.cell_run import CellRun, Scale
from lab.benchmarks.cell_turns import DILATION, PlannedRun, finish, fleet_of, short_items, shortened, turns
from lab.benchmarks.peer_server import running
from lab.testbed.baselines import USUAL
from lab.testbed.cells import CELLS, REGIMES
from lab.testbed.load.load import Load
from lab.testbed.load.records import RunResult
from lab.testbed.processes import free_port
from lab.testbed.provenance import command_line
from lab.testbed.recordings import BUNDLED
from lab.testbed.simulator import simulate
from lab.testbed.traces import ItemTrace, Proposal, TraceSet, read_traces
from tests.lab.emulated_runs import emulated_by

NAMES = USUAL
SMALL = Scale(repeats=2, max_tokens=12, max_users=4)


def cell_run(run):
    traces = shortened(read_traces(BUNDLED), SMALL.max_tokens)
    return CellRun(CELLS[1], SMALL, short_items(SMALL.max_tokens), traces, run, say=lambda line: None)


def summary(**values):
    return {
        "output_throughput": 100.0,
        "pace_mean": 10.0,
        "acceptance_rate": 0.0,
        "tokens_per_round": 0.0,
    } | {"positions_per_token": 1.0, **values}


# -- turns ------------------------------------------------------------------------------------------------------


def test_baselines_take_turns():
    order = [tuple(turn) for turn in turns(NAMES, 2)]
    assert order == [(name, repeat) for repeat in (0, 1) for name in NAMES]


def test_every_regime_has_a_dilation():
    assert set(DILATION) == set(REGIMES)
    assert fleet_of(CELLS[1], PlannedRun("centralized", 0), 4).dilation == DILATION[CELLS[1].regime]


def test_a_run_with_late_steps_beyond_the_bound_is_void():
    fleet = fleet_of(CELLS[1], PlannedRun("centralized", 0), 4)

    def run_with(late, late_s=0.0):
        emulation = {"steps": 100, "late_steps": late, "work_s": 1.0, "due_s": 5.0, "late_s": late_s}
        return lambda *arguments: RunResult("emulated", 0, 1, emulation=emulation)

    def made(run):
        return finish(run, fleet, [], TraceSet("", "", {}, ()), Load(), PlannedRun("centralized", 3))

    assert not made(run_with(5)).void
    assert made(run_with(6)).void
    assert not made(run_with(1, late_s=0.2)).void
    assert made(run_with(1, late_s=0.3)).void  # one step, but by 6 % of all the time
    assert made(run_with(0)).real_share["engine"] == 0.2
    assert not made(lambda *arguments: RunResult("emulated", 0, 1)).void  # devices alone: there is no engine


def test_the_seed_of_a_run_is_its_repeat_for_every_baseline():
    seeds = []
    for turn in turns(NAMES[:2], 2):
        run = lambda fleet, items, traces, load: seeds.append(load.seed) or RunResult("emulated", 0, 1)  # noqa: E731
        finish(run, fleet_of(CELLS[1], turn, 4), [], TraceSet("", "", {}, ()), Load(seed=9), turn)
    assert seeds == [0, 0, 1, 1]


def test_a_recording_is_shortened_as_if_recorded_so():
    proposals = tuple(Proposal((1,), (0.5,)) for _ in range(5))
    long = ItemTrace("long", (7,), (1, 2, 3, 4, 5), "eos", proposals, (9, 9, 9, 9))
    brief = ItemTrace("brief", (8,), (1, 2, 3), "eos", proposals[:3], (9,))
    cut, kept = shortened(TraceSet("t", "d", {}, (long, brief)), 3).items
    assert (cut.target_ids, cut.finish_reason, len(cut.proposals), cut.alone_ids) == (
        (1, 2, 3),
        "length",
        3,
        (9,) * 3,
    )
    assert kept == brief


# -- one cell ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_cell_s_entry_has_all_runs_and_what_the_report_reads():
    entry = cell_run(emulated_by(simulate)).all(NAMES)
    assert {run["baseline"] for run in entry["runs"]} == set(NAMES)
    assert len(entry["runs"]) == 2 * len(NAMES) and entry["void"] == []
    assert {"id", "regime", "device", "link", "users", "pace", "fleet", "draft_lengths", "dilation"} <= set(
        entry
    )
    assert entry["users"] == 4
    assert len(entry["simulated"]) == 2 * len(NAMES)
    assert all("output_throughput" in run["summary"] for run in entry["runs"])
    # What was "emulated" here was the simulator itself, so that both must agree to the last digit.
    assert {each.error for each in compared(entry)} == {0.0}


def test_void_runs_are_told_and_not_kept():
    entry = cell_run(emulated_by(simulate, late=50)).all(("centralized",))
    assert entry["runs"] == [] and len(entry["void"]) == 2
    assert entry["void"][0]["late_share"] == 0.5


@pytest.mark.long
def test_a_document_is_written_after_each_cell(tmp_path):
    seen = []

    def run(fleet, items, traces, load):
        file = tmp_path / "regimes.json"
        seen.append(len(json.loads(file.read_text())["cells"]) if file.exists() else 0)
        return emulated_by(simulate)(fleet, items, traces, load)

    scale = replace(SMALL, repeats=1)
    document = regimes.measure(CELLS[1:3], scale, tmp_path, run)
    assert sorted(set(seen)) == [0, 1]
    written = json.loads((tmp_path / "regimes.json").read_text())
    assert [cell["id"] for cell in written["cells"]] == [cell.id for cell in CELLS[1:3]]
    assert written["label"] == "emulated" and written["provenance"]["command"] == command_line()
    assert written == json.loads(json.dumps(document))


def test_a_baseline_is_told_its_own_draft_length_for_the_cell(monkeypatch):
    """Most users served, and of those lengths the one that writes most tokens."""
    looked = {}

    def look(self, baseline, length):
        looked.setdefault(baseline, []).append(length)
        return {"served": 4 if length > 2 else 3, "output_throughput": length, "mean_e2el_ms": 1}

    monkeypatch.setattr(CellRun, "_look", look)
    run = cell_run(None)
    assert [run._best_length(name) for name in ("centralized", "sled-continuous")] == [2, 8]
    assert looked == {"sled-continuous": [2, 4, 8]}


@pytest.mark.parametrize("words", ["0", "7", "x", "1,,2"])
def test_cells_that_do_not_exist_are_refused(words, capsys):
    assert regimes.main(["--cells", words]) == 2
    assert "from 1 to 6" in capsys.readouterr().err


@pytest.mark.long
def test_one_cell_runs_end_to_end(tmp_path):
    """The real processes; the smallest cell of all."""
    scale = Scale(repeats=1, requests=5.0, warmup=0.5, max_tokens=6, max_users=2)
    traces = shortened(read_traces(BUNDLED), scale.max_tokens)
    cell = replace(CELLS[1], users=2)
    entry = CellRun(
        cell, scale, short_items(scale.max_tokens), traces, regimes.emulate, say=lambda line: None
    ).all(("centralized", "sled-continuous"))
    made = entry["runs"] + entry["void"]
    by_name = {run["baseline"]: run["summary"] for run in made}  # on a busy machine some are void
    assert set(by_name) == {"centralized", "sled-continuous"}
    assert all(run["summary"]["output_throughput"] > 0 for run in made)
    assert all(run["summary"]["failed"] == 0 for run in made)
    assert by_name["sled-continuous"]["drafted_tokens"] > 0
    assert all(run["real_share"]["engine"] > 0 for run in made)


# -- arithmetic -------------------------------------------------------------------------------------------------


def test_errors_are_relative_to_the_emulated_mean():
    runs = [
        {"baseline": "a", "live": False, "summary": summary(output_throughput=90.0)},
        {"baseline": "a", "live": False, "summary": summary(output_throughput=110.0)},
        {"baseline": "a", "live": True, "summary": summary(output_throughput=500.0)},
        {"baseline": "only emulated", "live": False, "summary": summary()},
    ]
    simulated = [{"baseline": "a", "live": False, "summary": summary(output_throughput=120.0)}]
    speed, _ = compared({"id": "here", "runs": runs, "simulated": simulated})
    assert str(speed) == "here, a: throughput, tokens/s: +20.0%  off by more than 15%"


def test_the_table_of_errors_has_the_median_and_the_largest_of_all_cells():
    def cell(name, emulated, simulated):
        of = [
            {
                "baseline": "opensled",
                "repeat": 0,
                "live": False,
                "summary": {"output_throughput": v, "pace_mean": 10.0},
            }
            for v in (emulated, simulated)
        ]
        return {"id": name, "runs": of[:1], "simulated": of[1:]}

    cells = [cell("a", 100.0, 101.0), cell("b", 100.0, 80.0), cell("c", 100.0, 104.0)]
    assert errors(cells) == [("opensled", "3", "4.0%", "-20.0%", "0.0%", "+0.0%")]


# -- the suite and the peer -------------------------------------------------------------------------------------


def test_a_peer_that_does_not_start_tells_its_own_words():
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    with pytest.raises(Exception, match="no such model"), running(command, free_port()):
        pytest.fail("it never answered")
