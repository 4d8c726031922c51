"""The benchmark of one budget for the batch: what its steps commit, and what they cost, by hand.

Run: .venv/bin/python -m pytest tests/lab/test_batch_budget_bench.py -q
"""

from __future__ import annotations

import json
from itertools import repeat
from pathlib import Path

import pytest

from lab.benchmarks import batch_budget
from lab.benchmarks.batch_budget_run import LawTarget, Reader, Run, one_length, worth_most
from lab.benchmarks.grid_place import SERVERS
from lab.testbed.emulation.step_law import StepLaw
from lab.testbed.traces import ItemTrace, Proposal, TraceSet

RIGHT, WRONG = (1,) * 8, (1, 1, 2, 2, 2, 2, 2, 2)
LAW = StepLaw.of(SERVERS["hub"])


def item(ids: tuple[int, ...], sure: float) -> ItemTrace:
    """Twenty tokens that are all 1, and the same draft at every place."""
    return ItemTrace("i", (5, 6, 7), (1,) * 20, "length", (Proposal(ids, (sure,) * 8),) * 20)


@pytest.mark.parametrize(
    ("ids", "verified", "written"), [(RIGHT, 4, 5), (WRONG, 4, 3), (WRONG, 1, 2), (RIGHT, 0, 1)]
)
def test_a_step_writes_what_stands_and_one_token_more(ids, verified, written) -> None:
    reader = Reader(repeat(item(ids, 0.9)))
    assert not reader.commit(verified)
    assert (reader.tokens, reader.context) == (written, 2 + written)


def test_a_text_ends_and_the_next_one_begins() -> None:
    reader = Reader(repeat(item(RIGHT, 0.9)))
    assert [reader.commit(8), reader.commit(8), len(reader.drafted), reader.commit(1)] == [
        False,
        False,
        1,
        True,
    ]
    assert (reader.tokens, reader.place) == (20, 0)


def test_the_rate_is_tokens_by_the_seconds_of_the_law() -> None:
    traces = TraceSet("t", "d", {}, (item(RIGHT, 0.9),))
    run = Run(one_length(4), LawTarget(LAW), traces, 2, 0)
    run.step()
    assert run.rate == pytest.approx(10 / LAW.cost.verify_s(10, 4, 2))
    assert run.rows == 8


def test_confidences_tell_good_drafts_from_bad_ones_in_one_batch() -> None:
    """Sixteen sessions whose drafts all look alike on the whole, and one token in two is marked as wrong."""
    good, bad = item(RIGHT, 0.95), item((2,) * 8, 0.05)
    traces = TraceSet("t", "d", {}, (good, bad))

    def rate(told: bool) -> float:
        run = Run(worth_most(told), LawTarget(LAW), traces, 32, 0)
        for _ in range(30):
            run.step()
        return run.rate

    assert rate(True) > 1.1 * rate(False)


def test_the_program_writes_its_ways_and_a_real_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--quick",
        "--regimes",
        "hub",
        "--sessions",
        "4",
        "--pair",
        "tiny",
        "--real",
        "2",
        "--out",
        str(tmp_path),
    ]
    assert batch_budget.main(words) == 0
    assert "hub, simulated" in capsys.readouterr().out
    simulated, real = json.loads((tmp_path / "batch_budget.json").read_text())["places"]
    assert (simulated["label"], real["label"], real["target"]) == ("simulated", "real", "tiny")
    assert all(rate > 0 for rates in real["tokens_per_s"].values() for rate in rates)
