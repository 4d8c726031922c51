"""The grid: its places, gone on with after an end, its tables, and the page that has them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from lab.benchmarks import findings, grid
from lab.benchmarks.grid import Axes, Grid, begun, filled, law_error, name_of, read, source_of
from lab.benchmarks.grid_place import OF_DEVICES, OF_SERVER, PlaceCapacity
from lab.benchmarks.grid_view import claims, law_errors, ratio, ratios, reading
from lab.testbed.planner.recorded_drafts import RecordedDrafts
from opensled.core.errors import UsageError

TINY, CODE = RecordedDrafts("tiny"), RecordedDrafts("tiny", "code")
AXES = Axes(regimes=("hub-8k",), links=("wifi-good", "wan-80"), devices=("pi-5", "laptop-cpu"), paces=(10,))
ALONE = {"centralized": 40, "server-sd": 30}


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[grid.Asked]:
    """Every unit of work that was asked for; its answer is made up from the names alone, without a simulation."""
    asked = list[grid.Asked]()

    def made(run: Any, work: list[grid.Asked], jobs: int) -> Any:
        for unit in work:
            if len(asked) == 3:
                asked.append(unit)
                raise KeyboardInterrupt
            asked.append(unit)
            usual = 20 if unit.place.link == "wan-80" else 44
            yield [PlaceCapacity(name, ALONE.get(name, usual), 2, 41, 40, 3) for name in unit.modes]

    monkeypatch.setattr(grid, "mapped", made)
    monkeypatch.setattr(grid, "QUICK", AXES)
    return asked


def test_a_grid_has_every_place_and_is_filled_where_a_run_was_ended(units, tmp_path, capsys):
    words = ["--pair", "tiny", "--acceptance", "code", "--quick", "--out", str(tmp_path)]
    assert grid.main(words) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["grid-code.part"]
    assert grid.main(words) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["grid-code.json"]
    assert "goes on with" in capsys.readouterr().err
    found = read(tmp_path / "grid-code.json")
    assert source_of(found) == CODE and found["figure"] == name_of(CODE) == "grid-code"
    near = found["points"][0]
    assert near["capacity"] == ALONE | dict.fromkeys(OF_DEVICES, 44) and near["kv_full"] == ["centralized"]
    assert [point["capacity"]["opensled"] for point in found["points"]] == [44, 44, 20, 20]
    # Once for each link alone, once for each of its devices; the one that was in the way is asked twice.
    assert [unit.modes for unit in units] == [OF_SERVER] * 2 + [OF_DEVICES] * (4 + 1)
    assert [unit.near for unit in units[2:]] == [40] * 5
    assert found["facts"]["simulations"] == 3 * (2 * 2 + 4 * len(OF_DEVICES))
    assert found["law_error"]["opensled"]["points"] == 4
    ours = {"best": 1.1, "median": 0.8, "worst": 0.5, "places": 4, "below 1": 2}
    assert found["summary"]["all"]["opensled"] == found["summary"]["hub-8k"]["opensled"] == ours


def test_no_place_is_left_out():
    document = begun(Axes(), TINY)
    assert len(document["points"]) == 6 * 4 * 2 * 3
    assert filled(document | {"points": []}, lambda: None, 1)["law_error"] == {}


def test_a_file_that_is_no_grid_is_refused(tmp_path, capsys):
    (tmp_path / "grid-smollm2.part").write_text("[]")
    assert grid.main(["--out", str(tmp_path)]) == UsageError.exit_code
    assert "holds no grid" in capsys.readouterr().err


# -- tables -----------------------------------------------------------------------------------------------------


def point(link: str, device: str, plain: int, beside: int, static: int, continuous: int, ours: int) -> Any:
    names = ("centralized", "server-sd", "sled-static", "sled-continuous", "opensled")
    users = dict(zip(names, (plain, beside, static, continuous, ours)))
    where = {"regime": "hub", "pace": 10, "link": link, "device": device}
    return {**where, "capacity": users, "law": dict.fromkeys(users, 10), "kv_full": []}


def made(source: RecordedDrafts, *points: Mapping[str, Any]) -> Grid:
    whole = begun(Axes(("hub",), ("lte",), ("pi-5",), (10,)), source)
    return {**whole, "points": points, "law_error": law_error(points)}


GRIDS = [
    made(CODE, point("lte", "pi-5", 10, 12, 2, 30, 30), point("wan-80", "pi-5", 10, 12, 6, 12, 11),
         point("lte", "laptop-cpu", 0, 3, 0, 0, 2)),
    made(RecordedDrafts("smollm2"), point("lte", "pi-5", 10, 5, 2, 4, 9), point("wan-80", "pi-5", 10, 10, 28, 10, 10)),
]  # fmt: skip


def test_the_table_has_best_median_and_worst_of_all_places_and_how_many_lose():
    lines = ratios(GRIDS).splitlines()
    assert (
        "| code | 0.80 | opensled | 3.00 | 2.05 | 1.10 | 0 of 2 | hub, pi-5, lte, 10 tokens/s | "
        "hub, pi-5, wan-80, 10 tokens/s |"
    ) in lines
    [ours] = [line for line in lines if line.startswith("| smollm2 (recorded) | 0.57 | opensled")]
    assert "| 1.00 | 0.95 | 0.90 | 1 of 2 |" in ours and lines.index(ours) == 2  # recorded drafts come first
    assert ratio(GRIDS[0]["points"][2], "server-sd") is None
    assert ratios([]) == ""


def test_the_reading_says_where_it_is_worse_than_the_best_of_the_others():
    lines = reading(GRIDS).splitlines()
    assert "at 1 of 3 places, and less than 0.95 at 2; the least is 0.67" in lines[2]
    assert lines[2].endswith("At 1 places only drafts serve anybody.")
    assert "at 0 of 2 places, and less than 0.95 at 2; the least is 0.36 (hub, pi-5, wan-80" in lines[1]


def test_a_claim_is_counted_where_it_holds():
    assert "| code | 0 of 2 | 1 of 2 | 2 of 2 | 1 of 2 |" in claims(GRIDS)
    assert "| smollm2 (recorded) | 1 of 2 | 0 of 2 | 1 of 2 | 1 of 2 |" in claims(GRIDS)


def test_the_law_is_compared_where_speed_decides():
    assert "| centralized | 2 | 0.0 % | 100 % |" in law_errors(GRIDS[0])


def test_the_page_has_the_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(findings, "law_rows", list)
    for each in GRIDS:
        (tmp_path / f"{each['figure']}.json").write_text(json.dumps(each))
    text = findings.findings(findings.grids_there(tmp_path))
    assert ratios(GRIDS) in text and claims(GRIDS) in text and law_errors(GRIDS[1]) in text
    assert "2 kinds" not in text and "0 simulations" in text
