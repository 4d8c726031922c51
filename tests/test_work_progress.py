"""How far a long command is: the time left from parts that are done, a line on a terminal, lines elsewhere."""

import sys

import pytest

from opensled.process.work_progress import ERASE, LINE_SECONDS, WorkProgress
from tests.emulated import Clock
from tests.vt import Output


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


def finish(progress: WorkProgress, clock: Clock, kind: str, seconds: float) -> None:
    clock.now += seconds
    progress.finish(kind)


def test_the_time_left_is_that_of_parts_of_the_same_kind(clock):
    progress = WorkProgress("testing", ["load", "load", "step", "step", "step"], clock)
    assert progress.time_left() == ""
    finish(progress, clock, "load", 40)
    assert progress.time_left() == "at least 40 s left", "of steps nothing is known"
    finish(progress, clock, "step", 2)
    assert progress.time_left() == "about 44 s left"
    finish(progress, clock, "step", 30)
    assert progress.time_left() == "about 56 s left"
    finish(progress, clock, "step", 30)
    finish(progress, clock, "load", 30)
    assert progress.time_left() == "about 0 s left"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(50, "about 50 s"), (600, "about 10 min"), (9000, "about 2.5 h"), (0.1, "about 0 s")],
)
def test_times_have_a_unit_that_fits(clock, seconds, said):
    progress = WorkProgress("testing", ["step", "step"], clock)
    finish(progress, clock, "step", seconds)
    assert progress.time_left() == f"{said} left"


def test_a_terminal_has_one_line_that_goes_away(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Output())
    monkeypatch.setenv("COLUMNS", "40")
    with WorkProgress("testing", ["step"] * 4, clock) as progress:
        finish(progress, clock, "step", 5)
    shown = sys.stderr.getvalue()
    assert shown.endswith(ERASE) and "\n" not in shown
    assert max(map(len, shown.split(ERASE))) == 39, "a line that wraps would stay"
    assert "testing ######.................. 1 of 4" in shown


def test_elsewhere_a_line_comes_now_and_then(clock, capsys):
    with WorkProgress("testing", ["step"] * 100, clock) as progress:
        for _ in range(10):
            finish(progress, clock, "step", LINE_SECONDS / 5)
    assert capsys.readouterr().err == (
        "testing: 5 of 100 parts, about 5 min left\ntesting: 10 of 100 parts, about 4 min left\n"
    )
