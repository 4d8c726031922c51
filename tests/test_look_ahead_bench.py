"""The bench of the edge that hides the network: what the law says first, how runs are kept, and how they are judged.

Run: .venv/bin/python -m pytest tests/test_look_ahead_bench.py -q
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import look_ahead
from benchmarks.look_ahead_cells import (
    ADAPTIVE,
    CENTRALIZED,
    EVERYTHING,
    PLAIN,
    USERS,
    Cell,
    Effort,
    cells,
    law,
    search,
)
from benchmarks.look_ahead_plot import write_plot
from benchmarks.look_ahead_view import ratio, section, verdicts
from benchmarks.readme import write_readme
from opensled.errors import UsageError
from opensled_testbed.recordings import BUNDLED
from opensled_testbed.simulator import simulate
from opensled_testbed.traces import read_traces
from tests.emulated_runs import emulated_by

FEW = replace(look_ahead.QUICK, effort=Effort(10.0, 30.0, 1, (0, 2)))
CHOSEN = [Cell("hub", "laptop-cpu", "wifi-good"), Cell("hub", "pi-5", "wifi-good")]


@pytest.mark.long
def test_the_law_names_the_cells_before_anything_runs(tmp_path: Path) -> None:
    """Its word is in the file when the first run begins."""
    kept: list[dict[str, Any]] = []

    def run(fleet, items, traces, load):
        kept.append(json.loads((tmp_path / "look_ahead.json").read_text()))
        return emulated_by(simulate)(fleet, items, traces, load)

    look_ahead.measure(CHOSEN, FEW, "a test", tmp_path, run)
    first = kept[0]
    assert [word["id"] for word in first["law"]["cells"]] == [cell.id for cell in CHOSEN]
    assert first["law"]["written"] and not first["cells"] and not first["search"]
    assert kept[-1]["law"] == first["law"]


def test_the_law_expects_most_where_devices_are_slow_and_links_long() -> None:
    traces = read_traces(BUNDLED)
    words = {cell.id: law(cell, traces) for cell in cells()}
    assert len(words) == 18
    assert all(word.everything >= word.centralized for word in words.values()), "the server can always decode"
    assert words["dense-8k, pi-5, lte"].gain > words["dense-8k, laptop-cpu, wifi-good"].gain > 1
    assert words["hub, laptop-cpu, wifi-good"].gain < 1.5 < words["hub, pi-5, lte"].gain
    better = law(Cell("hub", "laptop-cpu", "wifi-good"), _always_right())
    assert better.length > 0 and better.everything > 1.5 * better.centralized


def _always_right():
    traces = read_traces(BUNDLED)
    items = []
    for item in traces.items:
        ids = [item.target_ids[place : place + 8] for place in range(len(item.target_ids))]
        proposals = [replace(old, ids=(*new, *[0] * 8)[:8]) for old, new in zip(item.proposals, ids)]
        items.append(replace(item, proposals=tuple(proposals)))
    return replace(traces, items=tuple(items))


@pytest.mark.long
def test_cells_of_a_place_share_the_runs_without_drafts_and_void_ones_are_made_once_more() -> None:
    made: list[str] = []

    def run(fleet, items, traces, load):
        made.append(fleet.server.policy)
        late = 90 if len(made) < 4 else 0
        return emulated_by(simulate, late)(fleet, items, traces, load)

    document = look_ahead.measure(CHOSEN, FEW, "a test", None, run)
    first, second = document["cells"]
    assert made == ["fcfs", "fcfs", "static", "static", "goodput", "goodput", "static", "goodput", "goodput"]
    assert [run["contender"] for run in first["void"]] == [CENTRALIZED]
    assert [run["contender"] for run in first["runs"]] == [PLAIN, ADAPTIVE, EVERYTHING]
    assert second["void"] == first["void"]
    assert all(len(run["rates"]) == USERS for run in first["runs"])
    assert [entry["lengths"] for entry in document["search"]] == [[0, 2], [0, 2]]


def entry(contender: str, repeat: int, rate: float) -> dict[str, Any]:
    return {"contender": contender, "repeat": repeat, "rates": [rate] * USERS, "simulated": [rate] * USERS}


def document_of(everything: float) -> dict[str, Any]:
    """Two repeats of one cell; plain SLED writes 5 tokens/s and the server alone 10."""
    document = look_ahead.begun(CHOSEN[:1], FEW, "a test", 1)
    rates = {PLAIN: 5.0, ADAPTIVE: 9.0, EVERYTHING: everything, CENTRALIZED: 10.0}
    runs = [
        entry(name, repeat, rate * (1 + repeat / 10)) for repeat in (0, 1) for name, rate in rates.items()
    ]
    document["law"]["cells"][0]["expected"] = True
    document["cells"] = [{"id": CHOSEN[0].id, **vars(CHOSEN[0]), "runs": runs, "void": []}]
    document["search"] = [
        {"id": CHOSEN[0].id, "share": 0.94, "best_length": 3, "best_policy": "fcfs", "adaptive": 1, "best": 1}
    ]
    return document


def test_users_are_compared_with_themselves_repeat_by_repeat() -> None:
    [cell] = document_of(9.6)["cells"]
    assert ratio(cell, EVERYTHING, PLAIN) == pytest.approx((1.92, 1.92, 1.92))
    del cell["runs"][-1]
    assert ratio(cell, EVERYTHING, CENTRALIZED) == pytest.approx((0.96, 0.96, 0.96))
    cell["runs"] = cell["runs"][:1]
    assert ratio(cell, EVERYTHING, CENTRALIZED) is None


@pytest.mark.parametrize(("everything", "kept"), [(9.6, [True, True, False]), (7.0, [False, False, False])])
def test_every_bar_is_judged_and_what_is_missed_is_told(everything: float, kept: list[bool]) -> None:
    document = document_of(everything)
    assert [verdict.kept for verdict in verdicts(document)] == kept
    text = "\n".join(section(document))
    assert text.count("MISSED") == kept.count(False)
    assert f"{sum(kept[:1])} of 1 cells" in text


def test_readme_and_plot_are_made_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "look_ahead.json").write_text(json.dumps(document_of(9.6)))
    text = write_readme(tmp_path).read_text()
    assert "## The edge that hides the network" in text
    assert "**1.92** (1.92 to 1.92) | " in text and "0.940 (k = 3)" in text
    write_plot(document_of(9.6), tmp_path / "look_ahead.svg")
    assert "plain SLED" in (tmp_path / "look_ahead.svg").read_text()
    assert look_ahead.main(["--show", str(tmp_path / "look_ahead.json"), "--out", str(tmp_path)]) == 0


def test_a_cell_that_does_not_exist_is_refused_by_name() -> None:
    assert look_ahead.main(["--only", "mars", "--quick"]) == UsageError("").exit_code


@pytest.mark.long
def test_the_search_finds_what_its_own_simulations_say() -> None:
    [found] = search([CHOSEN[0]], FEW.effort, 1)
    rates = [*found["fixed"]["goodput"], *found["fixed"]["fcfs"]]
    assert found["best"] == max(rates) and found["fixed"][found["best_policy"]][
        found["lengths"].index(found["best_length"])
    ] == max(rates)
    assert found["share"] == pytest.approx(found["adaptive"] / found["best"], abs=1e-4)
