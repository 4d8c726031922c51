"""Figures of docs/benchmarks as tables: what was measured of some and not of others leaves a gap, and no error."""

import json
import subprocess
from pathlib import Path

import pytest

from lab.benchmarks import loose_rules
from lab.benchmarks.quality_plot import sweeps
from lab.benchmarks.readme import write_readme

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"


def test_the_table_of_all_figures_is_the_one_in_the_folder(tmp_path):
    """The README is generated, and by the code of today."""
    for path in FOLDER.glob("*.json"):
        (tmp_path / path.name).symlink_to(path)
    assert write_readme(tmp_path).read_text() == (FOLDER / "README.md").read_text()


def test_rules_of_a_kind_are_one_line_in_the_order_of_what_they_gain():
    def rows(tokens_per_round, mean):
        compared = {"difference": {"mean": mean, "low": mean - 0.01, "high": mean + 0.01}}
        return [{"tokens_per_round": tokens_per_round, "compared": compared}]

    document = {
        "baseline": "match",
        "rules": {
            "match": rows(2.0, 0.0),
            "fly:theta=0.1,window=6,entropy=normalized": rows(3.0, -0.02),
            "fly:theta=0.3,window=6,entropy=normalized": rows(2.5, 0.0),
            "pad:sigma=0.5,floor=0.0001": rows(4.0, -0.1),
        },
    }
    found = sweeps(document)
    assert [[point.label for point in points] for points in found.values()] == [["θ=0.3", "θ=0.1"], ["σ=0.5"]]
    assert [point.gain for point in found["fly, window 6, normalised entropy"]] == [1.25, 1.5]
    assert found["pad"][0].difference == pytest.approx((-10.0, -11.0, -9.0))


@pytest.mark.parametrize("code", [0, 3])
def test_a_figure_of_loose_rules_is_what_opensled_quality_wrote(tmp_path, monkeypatch, capsys, code):
    asked = []

    def run(command):
        asked.append(command)
        out = Path(command[command.index("--out") + 1])
        out.mkdir(parents=True)
        rules = {"match": [], "fly:theta=0.3,window=6,entropy=normalized": []}
        (out / "quality.json").write_text(json.dumps({"baseline": "match", "rules": rules, "label": "real"}))
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(loose_rules.subprocess, "run", run)
    monkeypatch.setattr(loose_rules.quality_plot, "main", lambda words: asked.append(words))
    folders = ("--work", str(tmp_path / "work"), "--out", str(tmp_path))
    assert loose_rules.main(["smollm2-fly", "--items", "3", *folders]) == (1 if code else 0)
    assert asked[0][3:5] == ["quality", "--model"] and asked[0][asked[0].index("--items") + 1] == "3"
    if code:
        assert "exit code 3" in capsys.readouterr().err and not list(tmp_path.glob("*.json"))
    else:
        assert json.loads((tmp_path / "quality-smollm2-fly.json").read_text())["label"] == "real"
        assert asked[1] == [str(tmp_path / "quality-smollm2-fly.json")]
