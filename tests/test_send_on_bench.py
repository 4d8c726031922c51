"""The program that simulates sending on: its texts, its delays, and what a cell of it says."""

from __future__ import annotations

import json

import pytest

from benchmarks import send_on
from benchmarks.send_on import Delay, Setting, cell, made, run


def test_draft_tokens_are_right_as_often_as_asked_and_wherever_drafting_began() -> None:
    trace = made(1, 0.8)
    rights = [trace.right(place, 1) for place in range(send_on.TOKENS)]
    assert sum(rights) / len(rights) == pytest.approx(0.8, abs=0.06)
    for place in range(send_on.TOKENS):
        assert trace.right(place, 40) == [*rights[place : place + 40], 0].index(0)


def test_every_message_takes_the_same_time() -> None:
    assert Delay(0.05).deliver_at(3.0, 10_000) == 3.05


@pytest.mark.long
def test_good_drafts_gain() -> None:
    """The same texts in fewer seconds, and more rounds in each: the server takes every draft."""
    setting = Setting(1, "fcfs", 6)
    row = cell(25, 0.95, setting)
    assert row["gain"] > 1.02 and row["sends_on"]["rounds_per_s"] > row["waits"]["rounds_per_s"]
    assert run(25, 0.95, True, setting) == run(25, 0.95, True, setting), "a simulation is its arguments"


def test_the_program_writes_what_led_to_its_table(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(send_on, "ROUND_TRIPS_MS", (25,))
    monkeypatch.setattr(send_on, "ACCEPTANCES", (0.95,))
    assert send_on.main(["--quick", "--policy", "fcfs", "--out", str(tmp_path)]) == 0
    document = json.loads((tmp_path / "send_on.json").read_text())
    assert document["provenance"]["command"] == "python -m benchmarks.send_on --users 1 --policy fcfs --quick"
    assert [row["round_trip_ms"] for row in document["cells"]] == [25] and document["label"] == "simulated"
    assert "| 25 ms | 0.95 |" in capsys.readouterr().out
