"""`make bench-quick`: a planted regression is found and noise is not."""

import json
from pathlib import Path

from lab.benchmarks import quick
from lab.testbed.load.load import Load
from lab.testbed.provenance import LABELS
from lab.testbed.simulator import simulate
from tests.lab.emulated_runs import emulated_by

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
