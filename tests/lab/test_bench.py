"""Every benchmark runs, in seconds, and what it writes says where it comes from."""

import asyncio
import json
from pathlib import Path

import pytest

from lab.benchmarks import FIGURES, core_us, overload, quick
from lab.benchmarks.__main__ import main
from lab.benchmarks.figure import Comparison, Figure, in_turns
from lab.benchmarks.tenants import TenantRequest
from lab.testbed.load.load import Load
from lab.testbed.provenance import LABELS, command_line
from lab.testbed.simulator import simulate
from opensled.core.errors import OpenSledError, UsageError
from tests.lab.emulated_runs import emulated_by

FIGURE = Figure(
    title="One",
    unit="ms",
    more_is_better=False,
    compared="A against B.",
    loses="Nowhere.",
    samples={"a": [1.0, 2.0, 4.0], "b": [4.0, 4.0, 4.0]},
    ratios=(Comparison("case", "a", "b", required=3.0),),
)


def test_contenders_take_turns_and_the_first_turn_only_warms_up():
    turns = []
    samples = in_turns({name: lambda name=name: turns.append(name) or float(len(turns)) for name in "ab"}, 2)
    assert turns == ["a", "b", "a", "b", "a", "b"]
    assert samples == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


@pytest.mark.parametrize(("more_is_better", "ratios"), [(False, [4, 2, 1]), (True, [0.25, 0.5, 1])])
def test_a_ratio_above_one_is_a_gain_whatever_the_unit(more_is_better, ratios):
    figure = Figure(**{**vars(FIGURE), "more_is_better": more_is_better})
    assert figure.of_each_repeat(figure.ratios[0]) == ratios
    [written] = figure.as_json({})["ratios"]
    assert (written["ratio"], written["lowest"], written["highest"]) == (ratios[1], min(ratios), max(ratios))


# From five seconds to half a minute each, mostly of real servers under load: in `make test-long`.
LONG = ("overload", "planner", "rounds")
NAMES = [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in FIGURES.names()]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_measured_and_written_with_its_origin(name, tmp_path, capsys):
    assert main([name, "--quick", "--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written["label"] in LABELS
    assert written["samples"] and all(min(each) >= 0 for each in written["samples"].values())
    assert all(ratio["lowest"] <= ratio["ratio"] <= ratio["highest"] for ratio in written["ratios"])
    origin = written["provenance"]
    assert origin["command"] == command_line() and origin["dirty"] in (True, False, None)
    assert {"commit", "date", "ended", "seed", "machine", "python", "libraries"} <= set(origin)
    assert {"cpu", "cores", "load_average", "load_after"} <= set(origin["machine"])
    readme = (tmp_path / "README.md").read_text()
    assert written["title"] in readme and origin["command"] in readme and "*Loses*" in readme
    assert written["title"] in capsys.readouterr().out


def test_what_the_service_costs_is_printed(capsys):
    assert core_us.main(["--quick"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_an_unknown_figure_is_refused_by_name(capsys):
    assert main(["nothing", "--quick"]) == UsageError.exit_code
    assert "unknown figure 'nothing'; choose from rounds" in capsys.readouterr().err


def test_an_overload_without_any_answer_is_an_error_that_says_so(monkeypatch):
    async def silent(link, tenant, request):
        await asyncio.sleep(0.01)
        return TenantRequest(tenant, 1, 0.0)

    monkeypatch.setattr(overload, "ask", silent)
    with pytest.raises(OpenSledError, match="too busy to measure"):
        asyncio.run(overload._capacity(dict.fromkeys(overload.TENANTS), 0.05))


# -- `make bench-quick` -------------------------------------------------------------------------------------------


BASELINE = Path(__file__).resolve().parents[2] / quick.BASELINE
OLD = {"steady": [1.00, 1.01, 0.99], "noisy": [0.8, 1.0, 1.2]}


def regressed(**new):
    return [each.name for each in quick.compare(OLD, OLD | new) if each.regressed]


def test_a_planted_regression_is_found_and_noise_is_not():
    assert regressed() == []
    assert regressed(steady=[0.95, 0.9, 0.92]) == []  # 3 x 0.01 and 10 %
    assert regressed(steady=[0.80, 0.82, 0.85]) == ["steady"]
    assert regressed(steady=[0.2, 1.0, 1.0]) == []  # one bad repeat of three is no regression
    assert regressed(noisy=[0.5, 0.5, 0.5]) == []
    assert regressed(noisy=[0.25, 0.2, 0.25]) == ["noisy"]
    assert regressed(steady=[5.0]) == []  # faster is not worse


def test_the_command_exits_1_and_names_the_ratio(tmp_path, monkeypatch, capsys):
    path = tmp_path / "baseline.json"
    monkeypatch.setattr(quick, "measure", lambda: OLD)
    assert quick.main(["--write", "--baseline", str(path)]) == 0
    assert quick.main(["--baseline", str(path)]) == 0
    monkeypatch.setattr(quick, "measure", lambda: OLD | {"steady": [0.5, 0.5, 0.5]})
    assert quick.main(["--baseline", str(path)]) == 1
    printed = capsys.readouterr()
    assert "REGRESSED steady" in printed.out and "1.000 ->   0.500  (noise 0.130)" in printed.out
    assert "1 of 2 ratios are worse" in printed.err


def test_every_number_of_the_benchmarks_is_labelled():
    for path in BASELINE.parent.glob("*.json"):
        document = json.loads(path.read_text())
        labels = {"": document["label"]} if "label" in document else document["labels"]
        assert all(set(label.split(" / ")) <= set(LABELS) for label in labels.values()), path
        assert "label" in document or labels.keys() == document["samples"].keys(), path


def test_a_new_baseline_has_a_label_for_each_ratio():
    names = ["rounds: 16 streams", "hub: a, emulated over simulated", "hub: a over b"]
    document = quick.as_json({name: [1.0] for name in names}, {})
    assert document["labels"] == dict(zip(names, ["real", "emulated / simulated", "emulated"]))


def test_a_missing_or_outgrown_baseline_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quick, "measure", lambda: {"other": [1.0]})
    assert quick.main(["--baseline", str(tmp_path / "none.json")]) == 2
    assert "make one with --write" in capsys.readouterr().err
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({"samples": OLD}))
    assert quick.main(["--baseline", str(path)]) == 2
    assert "renew it: --write" in capsys.readouterr().err


def test_a_busy_machine_is_no_regression(monkeypatch, capsys):
    monkeypatch.setattr(quick, "COMPONENTS", {})
    monkeypatch.setattr(quick, "emulate", emulated_by(simulate, late=50))
    monkeypatch.setattr(quick, "read", lambda path: OLD)
    assert quick.main([]) == 1
    assert "50 % of the accelerator's steps were late" in capsys.readouterr().err


def test_a_perfect_emulation_equals_the_simulation(monkeypatch):
    monkeypatch.setattr(quick, "COMPONENTS", {})
    monkeypatch.setattr(quick, "emulate", emulated_by(simulate))
    monkeypatch.setattr(quick, "PASSES", 2)
    monkeypatch.setattr(quick, "LOAD", Load(warmup=0.5, duration=2.0))
    found = quick.measure()
    assert all(len(values) == quick.PASSES for values in found.values())
    assert {value for name, values in found.items() if "over simulated" in name for value in values} == {1.0}
