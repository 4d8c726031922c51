"""Which drafts plans and grids rest on: tasks, pairs, short grids, their table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks import grid_fill, grid_set, law_table
from lab.benchmarks.findings import grids_there
from lab.benchmarks.grid_document import SHORT, begun, name_of, source_of
from lab.benchmarks.grid_fill import Capacities
from lab.benchmarks.grid_place import Place, PlaceCapacity, by_law, left_open
from lab.benchmarks.grid_table import by_drafts, ratios, task_rows
from lab.benchmarks.readme import write_readme
from lab.testbed.planner.acceptance import of_traces
from lab.testbed.planner.mode_map import panels
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of
from lab.testbed.planner.setting import work_of
from lab.testbed.planner.task_acceptance import TASKS, check_acceptance, rate_of
from lab.testbed.recordings import DEFAULT_PAIR, check_pair, recording
from opensled.cli.main import main
from opensled.core.errors import UsageError

TINY, CODE = RecordedDrafts("tiny"), RecordedDrafts("tiny", "code")


# -- tasks and pairs --------------------------------------------------------------------------------------------


def test_a_task_stands_for_its_acceptance_and_a_number_for_itself() -> None:
    rates = {name: rate_of(name) for name in TASKS}
    assert rates == {"chat": 0.6, "mixed": 0.68, "code": 0.8, "mismatched": 0.35}
    assert (rate_of("0.72"), rate_of("0")) == (0.72, 0)
    check_acceptance("")
    for wrong in ("", "1", "-0.1", "nan", "poems"):
        with pytest.raises(UsageError, match=r"number from 0 to 0\.99, or one of chat \(0\.6\)"):
            rate_of(wrong)


def test_tokens_of_a_round_follow_from_the_acceptance() -> None:
    """As published figures were turned into tokens a round of four drafted."""
    rounds = {row[0]: row[2] for row in task_rows()}
    assert rounds == {"`mismatched`": "1.53", "`chat`": "2.31", "`mixed`": "2.67", "`code`": "3.36"}
    assert work_of(CODE).acceptance.tokens[4] == pytest.approx(3.36, abs=0.005)


def test_made_up_drafts_are_right_at_the_rate_of_their_task_with_ids_of_the_vocabulary() -> None:
    made = traces_of(CODE)
    assert of_traces(made).first == pytest.approx(0.8, abs=0.02)
    assert [item.target_ids for item in made.items] == [item.target_ids for item in traces_of(TINY).items]
    ids = [id for item in made.items for proposal in item.proposals for id in proposal.ids]
    assert min(ids) >= 0 and max(ids) <= max(id for item in made.items for id in item.target_ids)


def test_the_pair_that_predictions_rest_on_is_recorded_and_a_missing_one_is_named() -> None:
    assert recording(DEFAULT_PAIR).is_file()
    check_pair(DEFAULT_PAIR)
    with pytest.raises(UsageError, match="choose from tiny, smollm2"):
        check_pair("llama")


def test_a_pair_without_a_recording_is_told_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lab.testbed.recordings.PACKAGED", tmp_path)
    with pytest.raises(UsageError, match=r"nothing is recorded with the pair 'smollm2'.*--target smollm2"):
        check_pair("smollm2")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "as recorded with SmolLM2-135M-Instruct and its draft, 57 % of first tokens accepted"),
        (("--acceptance", "chat"), "made up, 0.6 of them right, as on open chat"),
        (("--acceptance", "0.725"), "made up, 0.725 of them right at each position"),
    ],
)
def test_a_plan_says_which_drafts_it_assumes(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--json", *words]) == 0
    assumes = json.loads(capsys.readouterr().out)["assumes"]
    assert told in assumes["drafts"]
    assert ("--acceptance" in assumes["drafts"]) == (not words)


# -- short grids ------------------------------------------------------------------------------------------------


def test_a_short_grid_has_only_what_the_law_leaves_open() -> None:
    axes = SHORT._replace(regimes=("dense-1k", "hub", "hub-8k"))
    document = begun(axes, CODE, short=True)
    kept = {(point["regime"], point["pace"]) for point in document["points"]}
    assert ("hub-8k", 10) in kept
    assert ("dense-1k", 5) not in kept  # decoding alone fills the memory
    assert ("hub", 40) not in kept  # no mode is that fast
    assert len(document["points"]) + document["facts"]["left_out"] == 3 * 2 * 3 * 4
    assert "throughput" not in document["facts"]
    many = Place("dense-1k", "wan-80", 20, CODE, "pi-5")
    assert left_open(many) and by_law(many) > 100
    assert [point["device"] for point in document["points"] if point["regime"] == "dense-1k"] == [
        "orin-nano-super"
    ] * 2
    assert source_of(json.loads(json.dumps(document))) == CODE


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every unit of work that was asked for, answered without a simulation."""
    asked: list[Any] = []

    def made(work: list[Any], jobs: int) -> Any:
        for unit in work:
            asked.append(unit)
            if len(asked) == 7:
                raise KeyboardInterrupt
            yield unit, [PlaceCapacity(name, 10 + len(name), 2, 9, 99, 1) for name in unit.baselines]

    monkeypatch.setattr(grid_fill, "_answered", made)
    monkeypatch.setattr(
        "lab.benchmarks.grid.SHORT", SHORT._replace(regimes=("hub-8k",), paces=(10,), links=("wan-80",))
    )
    return asked


def test_a_set_that_was_ended_goes_on_and_keeps_what_is_complete(units: list[Any], tmp_path: Path) -> None:
    words = ["code", "chat", "--pair", "tiny", "--out", str(tmp_path)]
    assert grid_set.main(words) == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid-chat.part", "grid-code.json"]
    assert grid_set.main(words) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid-chat.json", "grid-code.json"]
    # Each grid asks once for the server alone and for three devices; the one that was in the way is asked twice.
    assert len(units) == 4 + 4 + 1 and all(isinstance(unit, Capacities) for unit in units)
    assert {unit.place.source.acceptance for unit in units} == {"code", "chat"}
    assert [grid["figure"] for grid in grids_there(tmp_path)] == ["grid-chat", "grid-code"]


def test_a_name_that_is_neither_pair_nor_task_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert grid_set.main(["poems"]) == 2
    assert "choose from tiny, smollm2, chat" in capsys.readouterr().err


# -- the table --------------------------------------------------------------------------------------------------


def point(link: str, device: str, **capacity: int) -> dict[str, Any]:
    users = {name.replace("_", "-"): count for name, count in capacity.items()}
    return {"regime": "hub", "pace": 10, "link": link, "device": device, "capacity": users}


def grid(source: RecordedDrafts, short: bool, *points: dict[str, Any]) -> dict[str, Any]:
    return {"figure": name_of(source, short), "source": source._asdict(), "points": list(points)}


def capacity(plain: int, beside: int, static: int, continuous: int, ours: int) -> dict[str, int]:
    names = ("centralized", "server_sd", "sled_static", "sled_continuous", "opensled")
    return dict(zip(names, (plain, beside, static, continuous, ours)))


GRIDS = [
    grid(
        TINY,
        False,
        point("lte", "pi-5", **capacity(10, 5, 2, 4, 9)),
        point("wan-80", "pi-5", **capacity(10, 10, 10, 10, 10)),
        point("5g", "pi-5", **capacity(1, 1, 1, 100, 100)),  # no place of the short grid
    ),
    grid(
        CODE,
        True,
        point("lte", "pi-5", **capacity(10, 12, 2, 20, 20)),
        point("wan-80", "pi-5", **capacity(10, 12, 2, 12, 11)),
        point("lte", "laptop-cpu", **capacity(0, 3, 0, 0, 2)),
    ),
]


def test_the_table_has_best_median_and_worst_of_each_mode_at_the_places_of_the_short_grids() -> None:
    lines = by_drafts(GRIDS).splitlines()
    assert (
        "| code | 0.80 | opensled | 2.00 | 1.55 | 1.10 | hub, pi-5, lte, 10 tokens/s | hub, pi-5, wan-80, 10 tokens/s |"
        in lines
    )
    assert any(
        line.startswith("| tiny (recorded) | 0.58 | opensled | 1.00 | 0.95 | 0.90 |") for line in lines
    )
    assert lines.index(next(line for line in lines if line.startswith("| tiny"))) < lines.index(
        next(line for line in lines if line.startswith("| code"))
    )
    assert "| hub | 10 | server decodes 2 | draft beside it 2, devices draft 1 |" in lines
    assert "their number is: code 1, tiny 0." in by_drafts(GRIDS)


def test_without_a_short_grid_there_is_no_table() -> None:
    assert by_drafts(GRIDS[:1]) == "" == by_drafts([]) == ratios(GRIDS[:1])


def test_the_page_of_all_figures_has_the_table(tmp_path: Path) -> None:
    for each in GRIDS:
        (tmp_path / f"{each['figure']}.json").write_text(json.dumps(each))
    page = write_readme(tmp_path).read_text()
    assert (
        "## Users held, by the acceptance of the drafts (simulated)" in page
        and "| code | 0.80 | opensled" in page
    )


def test_by_the_law_better_drafts_pay_at_more_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(law_table, "panels", lambda: panels()[-1:])  # the small hub with much KV to read
    found = {row[0]: row[1:] for row in law_table.law_rows()}
    assert list(found)[-4:] == ["mismatched", "chat", "mixed", "code"] and "tiny (recorded)" in found
    assert {sum(map(int, row[:4])) for row in found.values()} == {7 * 4 * 4}
    devices = [int(found[name][2]) for name in ("mismatched", "chat", "mixed", "code")]
    assert devices == sorted(devices) and devices[0] < devices[-1]
    assert float(found["code"][4]) > 4 and found["code"][5].startswith("dense-8b on agx-orin, 8192 positions")
