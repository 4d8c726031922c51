"""The benches of draft heads on devices: what is compared, how runs are kept, and how they are judged.

Run: pytest tests/test_device_heads_bench.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import device_heads, device_heads_law, device_heads_real
from benchmarks.device_heads_cells import (
    ALIKE,
    DEFAULT,
    DEVICE,
    DRAFT,
    DRAFT_CHANCE,
    FEW_BITS,
    FIXED,
    HEAD_CHANCE,
    NONE,
    RECORDED,
    SERVER,
    Contender,
    Place,
    alike,
    contenders,
    jobs,
    places,
    recorded,
    sources,
)
from benchmarks.device_heads_real_view import law_section
from benchmarks.device_heads_real_view import section as real_section
from benchmarks.device_heads_view import compared, section, verdict
from opensled.errors import UsageError
from opensled_testbed.traces import rounds

HERE = Place("hub", "pi-5", "lte", 1)


def test_every_recorded_head_is_compared() -> None:
    assert set(sources()[RECORDED]) >= {"ctc", "specformer"}
    for kind in sources()[RECORDED]:
        own = [each for each in contenders(RECORDED) if each.kind == kind]
        assert {each.drafts for each in own} == {SERVER, DEVICE}
        assert {each.bits for each in own if each.drafts == DEVICE} == {32.0, FEW_BITS}


def test_each_contender_is_a_fleet_of_its_place() -> None:
    for each in (*contenders(RECORDED), *contenders(ALIKE, DEFAULT), Contender(RECORDED, NONE)):
        fleet = each.fleet(HERE)
        [group] = fleet.groups
        assert bool(fleet.server.draft) == (each.drafts == SERVER)
        assert group.has_head == (each.drafts == DEVICE) and (group.link, group.device) == ("lte", "pi-5")
        assert (group.drafter == "none") == (each.drafts in (NONE, SERVER))
        assert (fleet.server.policy, group.stop) != (DEFAULT, "fixed") or group.drafter == "none"


def test_what_does_not_depend_on_the_device_is_simulated_once() -> None:
    cells = [(place, RECORDED) for place in places(("hub",), ("pi-5", "laptop-cpu"), ("lte",), (1,))]
    found = jobs(cells, FIXED, quick=True)
    assert sum(job.contender.drafts == NONE for job in found) == 1
    assert sum(job.contender.drafts == SERVER for job in found) == 2 * len(sources()[RECORDED])
    assert sum(job.contender.drafts == DRAFT for job in found) == 4


@pytest.mark.parametrize(("is_head", "chance"), [(True, HEAD_CHANCE), (False, DRAFT_CHANCE)])
def test_drawn_drafts_stand_as_often_as_they_should(is_head: bool, chance: float) -> None:
    traces = alike(is_head)
    assert [item.target_ids for item in traces.items] == [
        item.target_ids for item in recorded("llamacpp").items
    ]
    ones = [pair for item in traces.items for pair in rounds(item, 1)]
    share = sum(accepted for _, accepted in ones) / sum(drafted for drafted, _ in ones)
    assert share == pytest.approx(chance, abs=0.02)


# -- judged --------------------------------------------------------------------------------------------------------


def entry(drafts: str, rate: float, **more: Any) -> dict[str, Any]:
    """A run in the cell HERE."""
    place = {"server": "hub", "link": "lte", "users": 1, "device": "" if drafts in (NONE, SERVER) else "pi-5"}
    contender = {"source": "" if drafts == NONE else RECORDED, "drafts": drafts, "length": 2, "kind": ""}
    costs = dict.fromkeys(
        ("first_ms", "rows_per_token", "server_ms_per_token", "head_ms_per_token", "bytes_down_per_token"),
        1.0,
    )
    return {**place, **contender, "bits": 32.0, "policy": FIXED, "rate": rate, **costs, **more}


def runs(of_device: float) -> list[dict[str, Any]]:
    return [
        entry(NONE, 10.0),
        entry(DRAFT, 8.0),
        entry(DRAFT, 12.0, length=4),
        entry(SERVER, 14.0, kind="ctc"),
        entry(DEVICE, of_device / 2, kind="ctc"),
        entry(DEVICE, of_device, kind="ctc", bits=FEW_BITS),
    ]


def document(of_device: float) -> dict[str, Any]:
    facts = {
        "alike": {"draft model": DRAFT_CHANCE, "head": HEAD_CHANCE},
        "acceptance": {
            "head-ctc": ["task items tokens first accepted tokens/round", "all 96 8424 0.257 0.096 1.259"]
        },
        "block_ms": [device_heads._block("hub", "pi-5", "ctc")],
    }
    return {
        "figure": "device_heads",
        "title": "Heads",
        "facts": facts,
        "places": [vars(HERE)],
        "runs": runs(of_device),
        "emulated": [],
    }


def test_a_head_is_held_against_the_best_of_each_other() -> None:
    [row] = compared([vars(HERE)], runs(13.0))
    assert row.others[DRAFT]["length"] == 4 and row.head["bits"] == FEW_BITS
    assert row.times == pytest.approx(13 / 14) and not row.wins
    assert "beats all three others nowhere" in verdict([row], RECORDED)


def test_cells_where_a_head_on_the_device_wins_are_named() -> None:
    rows = compared([vars(HERE)], runs(15.0))
    assert "in 1 of 1 cells**: hub, pi-5, lte, 1 user (1.07, ctc, few bits)" in verdict(rows, RECORDED)
    assert "nothing was simulated" in verdict(rows, ALIKE)


def test_near_cells_are_simulated_again_where_devices_decide_themselves() -> None:
    assert device_heads.near(runs(13.5), [HERE]) == [(HERE, RECORDED)]
    assert device_heads.near(runs(12.0), [HERE]) == []


def test_the_section_shows_every_cell() -> None:
    shown = "\n".join(section(document(15.0)))
    rates = "10.0 | 12.0 (k=4) | 14.0 (ctc, k=2) | 7.5 (ctc) | 15.0 (ctc) | **1.07**"
    assert f"| hub, pi-5, lte, 1 user | {rates} |" in shown
    assert "- `head-ctc`: all 0.257, 1.259" in shown


def test_a_run_that_was_ended_goes_on(tmp_path: Path, monkeypatch) -> None:
    todo = jobs([(HERE, RECORDED)], FIXED, quick=True)
    monkeypatch.setattr(type(todo[0]), "run", lambda job: {"rate": job.contender.length})
    path = tmp_path / "runs.part"
    first = list(device_heads.Kept(path).all(todo[:3], workers=1))
    ran: list[int] = []
    monkeypatch.setattr(type(todo[0]), "run", lambda job: ran.append(1) or {"rate": job.contender.length})
    again = list(device_heads.Kept(path).all(todo, workers=1))
    assert again[:3] == first and len(ran) == len(todo) - 3


@pytest.mark.long
def test_a_quick_run(tmp_path: Path, capsys) -> None:
    assert device_heads.main(["--quick", "--jobs", "1", "--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "device_heads.json").read_text())
    assert written["runs"] and written["facts"]["block_ms"]
    assert device_heads.main(["--show", str(tmp_path / "device_heads.json")]) == 0
    assert "A draft head on the device" in capsys.readouterr().out


# -- the measured ones ---------------------------------------------------------------------------------------------


def test_a_real_run_needs_a_head(capsys) -> None:
    for program in (device_heads_real, device_heads_law):
        assert program.main(["--quick"]) == UsageError.exit_code
        assert "opensled export-head writes them" in capsys.readouterr().err


def answer(seconds: float) -> dict[str, Any]:
    told = {"prompt_tokens": 9, "drafted": 0, "accepted": 0, "rounds": 4, "round_tokens": 6}
    return {"tokens": 20, "seconds": seconds, "first_s": 0.5, **told}


def test_the_section_of_a_real_run() -> None:
    names = ["none", "ctc on the device"]
    answers = {names[0]: answer(2.0), names[1]: answer(1.0)}
    units = [{"kind": "chat", "number": number, "load": 0.5, "answers": answers} for number in range(3)]
    found = device_heads_real.ratios(units, names)
    assert found["ctc on the device"]["mean"] == pytest.approx(2.0)
    told = {
        "title": "Real",
        "units": units,
        "facts": {"contenders": names, "max_tokens": 20},
        "ratios_to_none": found,
        "provenance": {"command": "a test", "machine": {"cpu": "a core"}},
    }
    row = "| ctc on the device | 20.0 | **2.00** (2.00 to 2.00) | 2.00 | 0.50 | 1.50 |"
    assert row in real_section(told)


def test_the_section_of_the_law() -> None:
    head = {
        "head": "ctc",
        "MB": 36.0,
        "MFLOP": 117,
        "least_ms": 4.0,
        "median_ms": 5.0,
        "law_ms": 3.0,
        "share": 0.75,
    }
    told = {
        "title": "The law",
        "provenance": {"command": "a test", "machine": {"cpu": "a core", "load_average": [0.1]}},
        "core": {"read, GB/s": 12.0, "compute, GFLOP/s": 60.0},
        "heads": [head],
    }
    assert "| ctc | 36 | 117 | 4 | 5 | 3 | 0.75 |" in law_section(told)
