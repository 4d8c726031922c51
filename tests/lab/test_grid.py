"""The grid as a document: merged into an older one, gone on with, checked, and judged.

Run: .venv/bin/python -m pytest tests/lab/test_grid.py -q
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks import grid, grid_fill, grid_verdict
from lab.benchmarks.grid import spot_check
from lab.benchmarks.grid_document import Axes, begun, read, without
from lab.benchmarks.grid_fill import place_of
from lab.benchmarks.grid_place import Place, PlaceCapacity, answers
from lab.benchmarks.grid_shares import told, verdict
from lab.benchmarks.program import write_json
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from lab.testbed.provenance import command_line
from lab.testbed.tuning import TRIGGERS
from opensled.core.errors import UsageError

AXES = Axes(regimes=("hub",), links=("wifi-good", "lte"), devices=("pi-5",), paces=(10,))
ALONE = {"centralized": 40, "server-sd": 30}
TINY = RecordedDrafts("tiny")


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every unit of work that was asked for; its answer is made up from the names alone, without a simulation."""
    asked: list[Any] = []

    def made(work: list[Any], jobs: int) -> Any:
        for unit in work:
            asked.append(unit)
            yield unit, _found(unit)

    monkeypatch.setattr(grid_fill, "_answered", made)
    return asked


def _found(unit: Any) -> Any:
    if isinstance(unit, grid_fill.Capacities):
        return [_capacity(unit.place, name) for name in unit.baselines]
    return {name: 10.0 * unit.users + length for name, length in unit.lengths}


def _capacity(place: Place, name: str) -> PlaceCapacity:
    return PlaceCapacity(name, _users(place, name), 2, 41, 40, 3, (0.1, 0.2) if name == "pipesd" else None)


def _users(place: Place, name: str) -> int:
    return ALONE.get(name, 20 if place.link == "lte" else 44)


def filled(units: list[Any]) -> dict[str, Any]:
    document = begun(AXES, TINY)
    grid_fill.fill(document, TINY, lambda: None)
    return document


def test_a_grid_is_filled_with_capacities_and_with_throughput_at_the_load_of_the_best(
    units: list[Any],
) -> None:
    document = filled(units)
    near, far = document["points"]
    assert near["capacity"] == ALONE | dict.fromkeys(("sled-static", "sled-continuous", "opensled"), 44)
    assert near["kv_full"] == ["centralized"]
    assert [load["users"] for load in near["throughput"]] == [44, 22]
    assert [load["users"] for load in far["throughput"]] == [40, 20]
    assert set(near["throughput"][0]["tokens_per_s"]) == set(grid_fill.RATED)
    assert near["throughput"][1]["tokens_per_s"]["opensled"] == 222
    assert document["facts"]["simulations"] == 3 * (2 + 3 + 2 + 3) + 4 * 5
    # One alone for each link
    assert len([unit for unit in units if isinstance(unit, grid_fill.Capacities)]) == 4


def test_only_what_is_named_is_measured_anew(units: list[Any]) -> None:
    old = filled(units)
    units.clear()
    document = without(copy.deepcopy(old), ["opensled"])
    grid_fill.fill(document, TINY, lambda: None)
    assert [unit.baselines for unit in units[:2]] == [("opensled",)] * 2
    assert [unit.near for unit in units[:2]] == [44, 40]
    assert all(unit.lengths == (("opensled", 2),) for unit in units[2:]) and len(units) == 6
    assert document["points"] == old["points"]


def test_a_new_load_is_measured_for_everybody(units: list[Any]) -> None:
    document = filled(units)
    units.clear()
    document["points"][0]["capacity"]["sled-static"] = 60
    grid_fill.fill(document, TINY, lambda: None)
    assert [(unit.users, len(unit.lengths)) for unit in units] == [(60, 5), (30, 5)]
    assert [load["users"] for load in document["points"][0]["throughput"]] == [60, 30]


def test_a_run_that_was_ended_goes_on_where_it_was(units: list[Any], tmp_path: Path) -> None:
    document, part = begun(AXES, TINY), tmp_path / "grid.part"

    def saved() -> None:
        write_json(part, document)
        if len(units) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grid_fill.fill(document, TINY, saved)
    before = len(units)
    document = read(part)
    grid_fill.fill(document, TINY, lambda: None)
    assert document["points"] == filled(units)["points"]
    assert len(units) == before + (4 - 3) + 4 + 8


def test_the_command_merges_and_keeps_what_others_had(units: list[Any], tmp_path: Path) -> None:
    old = filled(units) | {"provenance": {"command": "once"}}
    old["points"][0]["capacity"]["sled-static"] = 43  # as only the file can know
    write_json(tmp_path / "grid.json", old)
    assert grid.main(["--only", "opensled", "--merge", "--out", str(tmp_path)]) == 0
    new = json.loads((tmp_path / "grid.json").read_text())
    assert new["points"][0]["capacity"]["sled-static"] == 43
    assert new["provenance"] == {"command": "once"}
    [addition] = new["additions"]
    assert addition["baselines"] == ["opensled"]
    assert addition["provenance"]["command"] == command_line()
    assert [path.name for path in tmp_path.iterdir()] == ["grid.json"]


def test_pipesd_comes_where_it_is_named_and_stays(units: list[Any], tmp_path: Path) -> None:
    write_json(tmp_path / "grid.json", filled(units))
    units.clear()
    assert grid.main(["--merge", "--out", str(tmp_path)]) == 0
    assert not units
    assert grid.main(["--only", "pipesd", "--merge", "--out", str(tmp_path)]) == 0
    assert [unit.baselines for unit in units] == [("pipesd",)] * 2  # loads are those of the rivals as before
    units.clear()
    assert grid.main(["--only", "opensled", "--merge", "--out", str(tmp_path)]) == 0
    assert {unit.baselines for unit in units[:2]} == {("opensled",)}
    new = json.loads((tmp_path / "grid.json").read_text())
    assert new["axes"]["baselines"] == [*begun(AXES, TINY)["axes"]["baselines"], "pipesd"]
    for point in new["points"]:
        assert point["capacity"]["pipesd"] == _users(place_of(point, TINY), "pipesd")
        assert point["thresholds"] == {"pipesd": [0.1, 0.2]}


@pytest.mark.long
def test_pipesd_gets_its_best_thresholds_at_a_place() -> None:
    [found] = answers(Place("hub-8k", "wifi-good", 10, TINY, "laptop-cpu"), ("pipesd",))
    assert found.thresholds in {each[1:] for each in TRIGGERS}
    assert found.kv_fits >= found.users > 0 and found.law > 0


@pytest.mark.parametrize(
    "words",
    [
        ["--only", "opensled"],
        ["--merge", "--only", "nobody"],
        ["--merge", "--quick"],
        ["--merge", "--only", "pipesd", "--acceptance", "0.8"],
    ],
)
def test_flags_that_do_not_fit_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        grid.main(words)
    assert refused.value.code == 2


def test_a_file_that_is_no_grid_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "grid.json").write_text("[]")
    assert grid.main(["--merge", "--out", str(tmp_path)]) == UsageError.exit_code
    assert "holds no grid" in capsys.readouterr().err


def test_a_spot_check_finds_a_value_that_the_code_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lab.benchmarks.grid.answers",
        lambda place, names: [PlaceCapacity(names[0], _users(place, names[0]), 2, 0, 0, 1)],
    )
    points = [
        {"regime": "hub", "link": link, "device": "pi-5", "pace": 10, "capacity": {"sled-static": users}}
        for link, users in (("lte", 20), ("wifi-good", 45))
    ]
    document = {"points": points, "facts": {}}
    assert spot_check(document, 9, ["sled-static"]) == 1
    assert document["facts"]["spot_check"] == {"values": 2, "differing": 1, "baselines": ["sled-static"]}


def point(
    ours: int, plain: int, continuous: int, law: float = 1.0, rates: tuple[float, float] = (1, 1)
) -> Any:
    names = {"centralized": plain, "sled-static": 0, "sled-continuous": continuous, "pipesd": 999}
    return {
        "regime": "r", "device": "d", "link": "l", "pace": 5,
        "capacity": names | {"opensled": ours},
        "law": {"centralized": 10, "server-sd": 10, "sled-static": 0, "sled-continuous": 10 * law, "pipesd": 90},
        "throughput": [{"users": 7, "tokens_per_s": {"centralized": rates[1], "opensled": rates[0]}}],
    }  # fmt: skip


def test_a_grid_on_which_nothing_is_lost_is_judged_so() -> None:
    found = verdict([point(100, 100, 50), point(98, 60, 100), point(0, 0, 0)])
    assert found.good == 1.0 and found.kept
    assert len(found.shares) == 5  # nobody is held at the last place: there only throughput can be compared


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([point(94, 100, 90)] + [point(100, 100, 90)] * 40, "below 0.95: 0.940 of centralized"),
        ([point(100, 100, 90, rates=(0.9, 1.0))] + [point(100, 100, 90)] * 40, "tokens/s with 7 users"),
        ([point(96, 100, 90)] * 2 + [point(100, 100, 90)] * 8, "90.0 % of 20 comparisons"),
        ([point(170, 100, 90, law=2.5)] * 9, "1.70 where the law says 2.50"),
    ],
)
def test_what_falls_short_is_named(points: list[Any], words: str) -> None:
    found = verdict(points)
    assert not found.kept
    assert words in told(found)


def test_the_verdict_command_fails_where_it_is_not_kept(tmp_path: Path) -> None:
    for ours, code in ((100, 0), (90, 1)):
        path = tmp_path / f"{ours}.json"
        path.write_text(json.dumps({"points": [point(ours, 100, 50)]}))
        assert grid_verdict.main([str(path)]) == code


def test_parts_of_opensled_come_where_they_are_named(units: list[Any], tmp_path: Path) -> None:
    write_json(tmp_path / "grid.json", filled(units))
    units.clear()
    assert grid.main(["--only", "opensled-server,opensled-device", "--merge", "--out", str(tmp_path)]) == 0
    # What the server does alone is asked once for all devices of a link.
    assert [unit.baselines for unit in units] == [("opensled-server",), ("opensled-device",)] * 2
    [near, _] = json.loads((tmp_path / "grid.json").read_text())["points"]
    assert near["capacity"]["opensled-device"] == near["capacity"]["opensled"]
    assert [share.rival for share in verdict([near]).shares if share.respect == "users"] == ["sled-static"]
