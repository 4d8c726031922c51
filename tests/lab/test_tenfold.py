"""Ten times the load through HTTP and through devices, in small."""

from __future__ import annotations

import json

import pytest

from lab.benchmarks.tenfold import PLACES, TENANTS, TIMES, Tally, main, users


def test_each_tenant_asks_for_more_than_its_part_of_the_places():
    assert sum(users(1).values()) == PLACES and sum(users(TIMES).values()) == PLACES * TIMES
    assert min(users(TIMES).values()) > PLACES / len(TENANTS)


def test_figures_of_a_phase_without_an_answer():
    figures = Tally(2.0).figures()
    assert figures["tokens/s"] == 0 and figures["answers"] == 0 and figures["faults"] == {}


@pytest.mark.long
def test_every_answer_is_whole_or_sent_away_with_a_time(tmp_path):
    out = tmp_path / "out.json"
    assert main(["--quick", "--out", str(out)]) == 0
    for road in ("http", "devices"):
        found = json.loads(out.read_text())[road]
        assert found["1x"]["answers"] and found["10x"]["answers"] and found["10x"]["sent away with a time"]
