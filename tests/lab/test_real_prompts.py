"""The prompts of the figure on a real pair, and how its answers are summed up; the measurement needs a real model."""

import json
import subprocess
import sys
from math import log
from pathlib import Path

import pytest

from lab.benchmarks import loose_rules
from lab.benchmarks.quality_plot import sweeps
from lab.benchmarks.readme import write_readme
from lab.benchmarks.real_contenders import CONTENDERS, DISTILLED, NONE, SELF, available, draft_models
from lab.benchmarks.real_document import finished, put, read_raw, write
from lab.benchmarks.real_plot import write_plot
from lab.benchmarks.real_prompts import main, titled
from lab.benchmarks.real_summary import mean_ratio, summary, tokens_per_round
from lab.benchmarks.real_texts import KINDS, MORE_KINDS, prompts
from lab.benchmarks.real_view import section
from lab.training.distil.documentation import HELD_OUT_MODULES

QUOTING = ("code", "extraction", "summary", "rewriting")


def test_every_kind_has_twelve_prompts_and_quoting_kinds_have_long_ones():
    for kind in KINDS:
        asked = prompts(kind)
        assert len({prompt.text for prompt in asked}) == len(asked) >= 12
        assert sum(prompt.is_long for prompt in asked) == (4 if kind in QUOTING else 0)
    assert all(len(prompts(kind)) == 10 for kind in MORE_KINDS)


def test_quotations_are_of_modules_that_no_draft_was_trained_on_and_are_cut_as_asked():
    from lab.benchmarks.real_texts import _document

    names = [
        name
        for kind in KINDS
        for prompt in _document()[kind]
        for key in ("docs", "source")
        for name in prompt.get(key, "").split("+")
    ]
    assert {name.partition(":")[0] for name in names} - {""} <= HELD_OUT_MODULES
    assert max(len(prompt.text) for prompt in prompts("summary", 600)) < 700


def test_the_mean_is_that_of_the_ratios_with_an_interval_around_it():
    assert mean_ratio([[log(2.0), log(0.5)]]) == {"mean": 1.0, "low": 0.5, "high": 2.0}
    # Every kind counts once, however many prompts it has
    assert mean_ratio([[log(4.0)], [0.0, 0.0, 0.0]])["mean"] == 2.0


def _answer(seconds: float, same: bool = True, rounds: int = 0) -> dict:
    counts = {"rounds": rounds, "round_tokens": 3 * rounds, "drafted": 4 * rounds, "accepted": 2 * rounds}
    return {"tokens": 60, "seconds": seconds, "first_s": 1.0, **counts, "same": same}


def _unit(kind: str, number: int, lookup: float, model: float, same: bool = True) -> dict:
    """No drafts take 6 seconds; `lookup` and `model`: seconds of these two."""
    answers = {NONE: _answer(6.0), "lookup": _answer(lookup, rounds=5), SELF: _answer(model, same, rounds=10)}
    about = {"setup": "torch", "sampling": "greedy", "target": "smollm2", "max_tokens": 60, "drafts": {}}
    return {**about, "kind": kind, "number": number, "long": number == 1, "text": "t", "answers": answers}


def _units() -> list[dict]:
    return [
        _unit("chat", 0, lookup=8.0, model=2.0),
        _unit("chat", 1, lookup=8.0, model=2.0, same=False),
        _unit("extraction", 0, lookup=1.5, model=3.0),
    ]


def test_the_best_drafter_of_each_kind_counts_and_losers_are_told():
    found = summary(_units())
    assert found["best of each kind"] == {"chat": SELF, "extraction": "lookup"}
    assert found["ratios"]["chat"]["lookup"]["mean"] == 0.75
    assert found["best of each kind, over the kinds"]["mean"] == pytest.approx((3 * 4) ** 0.5, abs=1e-3)
    assert found["over the kinds"][SELF]["mean"] == pytest.approx((3 * 2) ** 0.5, abs=1e-3)
    assert found["other texts"] == {"lookup": 0, SELF: 1} and found["long prompts"] == 1
    # 59 tokens in 5 seconds without drafts, 59 in 1 with them
    assert found["over the kinds, after the first text"][SELF]["mean"] == pytest.approx(
        (5 * 2.5) ** 0.5, abs=1e-3
    )
    assert found["accepted"] == {key: {"lookup": 0.5, SELF: 0.5} for key in ("chat", "extraction")}
    assert tokens_per_round(_units(), "lookup") == 3.0 and tokens_per_round(_units(), NONE) is None


def test_pieces_of_a_run_add_up_in_one_file_and_a_newer_unit_replaces_the_older_one(tmp_path):
    path = tmp_path / "real_prompts.json"
    raw = read_raw(path)
    for unit in reversed(_units()):
        put(raw, unit)
    put(raw, _unit("chat", 0, lookup=6.0, model=6.0))
    write(path, raw)
    again = read_raw(path)
    assert [(unit["kind"], unit["number"]) for unit in again["units"]] == [
        ("chat", 0),
        ("chat", 1),
        ("extraction", 0),
    ]
    assert again["units"][0]["answers"][SELF]["seconds"] == 6.0


def test_the_section_marks_what_is_lost_and_the_plot_is_written(tmp_path):
    raw = {"units": _units(), "pieces": []}
    document = finished(raw)
    text = "\n".join(section(document))
    assert "| ▼ 0.75 |" in text and "| **3.00** |" in text
    assert "required 1.5: reached" in text and f"other texts than without drafts: {SELF} 1" in text
    names = {ratio["name"] for ratio in document["ratios"]}
    assert names == {"torch, greedy: lookup", f"torch, greedy: {SELF}"}
    write_plot(titled(document["facts"]["runs"]), tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    assert SELF in drawn and "extraction" in drawn and "all kinds" in drawn


def test_contenders_whose_model_is_not_here_are_left_out():
    drafts = draft_models("tiny", {DISTILLED: "no-such-model"})
    assert set(drafts) == {SELF}
    left = set(CONTENDERS) - set(available(list(CONTENDERS), drafts))
    assert left == {DISTILLED, "chain"}


def test_an_unknown_kind_or_contender_is_refused_by_name(capsys):
    assert main(["--target", "tiny", "--quick", "--contenders", "magic"]) == 2
    assert "'magic' is none of none, " in capsys.readouterr().err
    assert main(["--target", "tiny", "--quick", "--kinds", "poetry"]) == 2
    assert "'poetry' is none of chat, " in capsys.readouterr().err


@pytest.mark.long
def test_a_run_in_two_pieces_on_the_bundled_models(tmp_path):
    words = (
        "--target",
        "tiny",
        "--setup",
        "torch",
        "--kinds",
        "chat",
        "--max-tokens",
        "8",
        "--samplings",
        "greedy",
    )
    for prompts_each, contenders in (("1", "default"), ("2", "default,lookup")):
        command = [sys.executable, "-m", "lab.benchmarks.real_prompts", *words, "--out", str(tmp_path)]
        subprocess.run(
            [*command, "--prompts", prompts_each, "--contenders", contenders], check=True, timeout=300
        )
    document = json.loads((tmp_path / "real_prompts.json").read_text())
    # The first prompt was asked again, for a contender was new
    assert [unit["number"] for unit in document["raw"]["units"]] == [0, 1] and len(
        document["raw"]["pieces"]
    ) == 2
    assert all(list(unit["answers"]) == ["none", "default", "lookup"] for unit in document["raw"]["units"])
    assert all(each["same"] for unit in document["raw"]["units"] for each in unit["answers"].values())
    assert (tmp_path / "real_prompts.svg").exists() and "Set-up torch, greedy" in (
        tmp_path / "README.md"
    ).read_text()


# -- tables -------------------------------------------------------------------------------------------------------


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
