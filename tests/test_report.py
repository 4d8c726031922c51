"""The HTML report from small made-up results: pytest tests/test_report.py -q"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.readme import write_readme
from opensled.cli import main
from opensled_testbed.report import cell_figures as cells
from opensled_testbed.report.plots import INK

ORIGIN = {
    "command": "make bench",
    "commit": "0123456789abcdef",
    "date": "2026-11-21T10:00:00+00:00",
    "seed": 0,
}
HOSTILE = "<script>alert('&')</script>"
WINS = {
    "centralized": [10, 12, 14],
    "sled-static": [6, 6, 6],
    "sled-continuous": [9, 9, 9],
    "opensled": [20, 22, 24],
}
LOSES = {
    "centralized": [20, 21, 22],
    "sled-static": [6, 6, 6],
    "sled-continuous": [9, 9, 9],
    "opensled": [10, 11, 12],
}
SECTIONS = (
    "summary",
    "legend",
    "claims",
    "losses",
    "cells",
    "capacity",
    "agreement",
    "grid",
    "grid-adapted",
    "map",
    "peer",
    "components",
    "more",
    "origins",
)


def _summary(value: float) -> dict[str, Any]:
    return {
        "pace_mean": value,
        "output_throughput": 10 * value,
        "tokens_per_round": 2.5,
        "positions_per_token": 2.0,
        "mean_ttft_ms": 300.0,
        "acceptance_rate": 0.6,
    }


def _cell(id: str, paces: dict[str, list[float]], **more: Any) -> dict[str, Any]:
    runs = [
        {"baseline": name, "repeat": repeat, "live": False, "summary": _summary(value)}
        for name, values in paces.items()
        for repeat, value in enumerate(values)
    ]
    live = [{"baseline": "sled-continuous", "repeat": 0, "live": True, "summary": _summary(99)}]
    simulated = [{"baseline": name, "summary": _summary(values[0])} for name, values in paces.items()]
    capacity = [
        {"baseline": name, "emulated": None, "simulated": int(10 * values[0])}
        for name, values in paces.items()
    ]
    cell = {"id": id, "regime": "r", "device": "d", "link": "l", "users": 16, "pace": 15.0, "fleet": {}}
    return cell | {"runs": runs + live, "simulated": simulated, "capacity": capacity} | more


def _regimes(*found: dict[str, Any]) -> dict[str, Any]:
    head = {"figure": "regimes", "title": "Cells", "label": "emulated", "provenance": ORIGIN, "dilation": 8}
    return head | {"cells": list(found)}


def _component(title: str = "Part", ratio: float = 0.5) -> dict[str, Any]:
    found = {"name": "case", "ours": "a", "against": "b", "ratio": ratio, "lowest": 0.4, "highest": 0.6}
    return {
        "figure": "part",
        "title": title,
        "label": "real",
        "unit": "ms",
        "compared": f"`a` against {HOSTILE}.",
        "loses": "Always.",
        "ratios": [found | {"required": 1.0}],
        "medians": {"a": 2.0, "b": 1.0},
        "provenance": ORIGIN,
    }


def _grid() -> dict[str, Any]:
    axes = {
        "regimes": ["dense-1k"],
        "links": ["ethernet", "lte"],
        "devices": ["pi-5"],
        "paces": [10],
        "baselines": ["centralized", "sled-continuous", "opensled"],
    }
    place = {"regime": "dense-1k", "device": "pi-5", "pace": 10, "draft_length": {"sled-continuous": 4}}
    points = [
        place | {"link": "ethernet", "capacity": {"centralized": 100, "sled-continuous": 80, "opensled": 87}},
        place | {"link": "lte", "capacity": {"centralized": 0, "sled-continuous": 5, "opensled": 5}},
    ]
    return {"figure": "grid", "title": "Grid", "label": "simulated", "provenance": ORIGIN} | {
        "axes": axes,
        "points": points,
    }


def _map() -> dict[str, Any]:
    point = {"target": "dense-8b", "accelerator": "a100-80", "context": 1024, "pace": 10, "link": "lte"}
    points = [
        point | {"device": "pi-5", "mode": "centralized", "draft_length": 0, "users": 9, "gain": 1.0},
        point | {"device": "orin-nx", "mode": "sled-continuous", "draft_length": 3, "users": 9, "gain": 1.73},
        point | {"device": "pi-4", "mode": "sled-continuous", "draft_length": 3, "users": 9, "gain": None},
    ]
    return {"figure": "map", "title": "Map", "label": "derived", "provenance": ORIGIN, "points": points}


def _doctor() -> dict[str, Any]:
    row = {
        "setup": "one",
        "foretold": 12.0,
        "came": 10.0,
        "off_by": 0.2,
        "own": 5.0,
        "acceptance": 0.5,
        "by_kind": {},
    }
    rows = [row, row | {"setup": "two", "came": 20.0, "off_by": -0.4}]
    return _component("Doctor") | {"ratios": [], "facts": {"bound": 0.25, "rows": rows}}


def _look_ahead() -> dict[str, Any]:
    rates = {"centralized": 10.0, "plain": 5.0, "adaptive": 9.0, "all": 9.0}
    runs = [{"contender": name, "rates": [rate]} for name, rate in rates.items()]
    head = {"figure": "look_ahead", "title": "Ahead", "label": "emulated", "provenance": ORIGIN}
    return head | {"cells": [{"id": "hub", "runs": runs}]}


EVERYTHING = {
    "regimes": _regimes(_cell("good cell", WINS), _cell(HOSTILE, LOSES)),
    "grid": _grid(),
    "grid-adapted": _grid()
    | {"figure": "grid-adapted", "additions": [{"baselines": ["opensled"], "provenance": ORIGIN}]},
    "map": _map(),
    "peer": _component("A peer"),
    "part": _component(),
    "doctor": _doctor(),
    "look_ahead": _look_ahead(),
    "other_form": {"provenance": ORIGIN, "label": "real"},
    "not-ours": {"something": "else"},
}


def _page(folder: Path, results: dict[str, Any]) -> str:
    for name, content in results.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    out = folder / "pages" / "report.html"
    assert main(["bench", "report", "--folder", str(folder), "--out", str(out)]) == 0
    return out.read_text("utf-8")


def _section(page: str, anchor: str) -> str:
    [found] = re.findall(rf'<section id="{anchor}">.*?</section>', page, re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _page(tmp_path_factory.mktemp("results"), EVERYTHING)


def test_the_page_has_every_section_and_a_way_to_it(page: str) -> None:
    assert re.findall('<section id="([^"]*)">', page) == list(SECTIONS)
    assert all(f'<a href="#{anchor}">' in page for anchor in SECTIONS)
    assert "is not there yet" not in page
    assert "Grid: opensled" in _section(page, "origins")  # measured later than the rest of its file


def test_each_figure_names_its_file_command_and_label(page: str) -> None:
    for anchor, file, label in (
        ("cells", "regimes", "emulated"),
        ("grid", "grid", "simulated"),
        ("grid-adapted", "grid-adapted", "simulated"),
        ("map", "map", "derived"),
        ("peer", "peer", "real"),
        ("components", "part", "real"),
    ):
        section = _section(page, anchor)
        assert f'<a href="../{file}.json">' in section  # from where the page lies
        assert "<code>make bench</code>" in section
        assert f'<span class="badge {label}"' in section


def test_text_of_the_results_is_escaped(page: str) -> None:
    assert "<script" not in page
    assert "&lt;script&gt;alert" in _section(page, "cells")
    assert "&lt;script&gt;alert" in _section(page, "components")


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    assert "://" not in page
    links = re.findall(r'(?:href|src)="([^"#][^"]*)"', page)
    assert set(links) == {f"../{name}.json" for name in EVERYTHING if name != "not-ours"}


def test_plots_take_the_colours_of_the_page(page: str) -> None:
    assert "prefers-color-scheme: dark" in page
    assert page.count("<svg role=") >= 6
    assert INK not in page and "currentColor" in page
    assert 'aria-label=""' not in page


def test_plots_on_one_page_do_not_share_names(page: str) -> None:
    ids = re.findall(r'\sid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    named = re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', page)
    assert {one or other for one, other in named} <= set(ids)


def test_a_cell_shows_mean_and_interval_of_its_repeats(page: str) -> None:
    section = _section(page, "cells")
    assert '<td class="number">12 ±4.97</td>' in section  # t(2) * 2 / sqrt(3) = 4.97
    assert "Throughput of OpenSLED: 1.83x of centralized." in section
    assert "Throughput: 1.85x of centralized (95 %: 1.49 to 2.21)." in section  # repeat by repeat
    assert "Pace of a user: 0.52x of centralized" in section


def test_losing_cells_are_marked_in_words_and_in_the_plot(page: str) -> None:
    good, bad = _section(page, "cells").split("<h3>")[1:]
    assert "▼" not in good
    assert "behind centralized" in bad
    assert ">▼ 11<" in bad.replace("\n", "")  # the number beside the bar


def test_where_we_lose_holds_every_loss(page: str) -> None:
    section = _section(page, "losses")
    assert "good cell" not in section
    assert section.count("&lt;script&gt;") == 3  # pace, throughput, capacity
    assert "48% worse" in section
    assert section.count("1 of 2 comparisons are lost to the best of centralized") == 2  # on both grids
    assert "0.87x" in section
    assert "case (0.50x)" in section


def test_a_loss_within_noise_says_so() -> None:
    wide = {"centralized": [10.0, 20.0, 30.0], "opensled": [9.0, 19.0, 29.0]}
    assert [loss.clear for loss in cells.losses(_cell("a", wide))] == [False, False]
    assert [loss.clear for loss in cells.losses(_cell("a", LOSES))] == [True, True]
    assert [loss.rival for loss in cells.losses(_cell("a", LOSES))] == ["centralized", "centralized"]
    assert cells.losses(_cell("a", WINS)) == []


def test_a_single_repeat_shows_no_clear_loss() -> None:
    one = {"centralized": [20.0], "opensled": [10.0]}
    assert [loss.clear for loss in cells.losses(_cell("a", one))] == [False, False]


def test_the_draft_alone_is_no_rival() -> None:
    assert cells.losses(_cell("a", WINS | {"device-only": [90.0, 90.0, 90.0]})) == []


def test_claims_are_counted_cell_by_cell(page: str) -> None:
    section = _section(page, "claims")
    last = section[section.index("reproduced in") :]
    # SLED's four gains, then WISP's two losses
    assert re.findall(r"(\d of \d) cells", last) == ["0 of 2"] * 4 + ["2 of 2"] * 2
    assert "0.75x" in section


def test_claims_are_counted_on_both_grids(page: str) -> None:
    section = _section(page, "claims")
    assert section.count("<h3>The grid, with") == 2
    # Continuous batches lose at the one place that can be rated, on each grid
    assert section.count("1 of 1") == 2


def test_the_grid_marks_what_is_below_centralized(page: str) -> None:
    section = _section(page, "grid")
    assert "▼0.87" in section
    assert ">new<" in section.replace("\n", "").replace(" ", "")
    assert "1 of 1" in section


def test_the_summary_comes_first_and_has_a_column_for_opensled(page: str) -> None:
    section = _section(page, "summary")
    assert page.index('id="summary"') < page.index('id="claims"')
    assert '<th class="number">OpenSLED</th>' in section
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr>.*?</tr>", section)]
    good = next(row for row in rows if row and row[0] == "good cell")
    assert good[2:] == ["–", "0.50x", "0.75x", "1.83x", "1.83x"]
    assert "A peer: case" in section


def test_every_file_that_says_where_it_is_from_has_a_place(page: str) -> None:
    section = _section(page, "more")
    assert "1 of 2 are within 25%" in section and "+20%" in section
    assert "1.80x" in section and ">▼</span> 0.90x" in section  # ahead of plain SLED, behind centralized
    assert '<a href="../other_form.json">' in section
    assert "not-ours" not in page


def test_one_is_no_plural(tmp_path: Path) -> None:
    part = _component("Streams")
    part["ratios"][0]["name"] = "1 streams, 21 sessions, at 1 tokens/s"
    page = _page(tmp_path, {"part": part})
    assert "1 stream, 21 sessions, at 1 tokens/s" in page and "1 streams" not in page


def test_red_is_for_what_opensled_loses(page: str) -> None:
    claims, agreement = _section(page, "claims"), _section(page, "agreement")
    assert claims.count('class="loss"') == 2  # its throughput and capacity in the cell that it loses
    assert 'class="loss"' not in agreement


def test_the_map_names_mode_and_gain(page: str) -> None:
    section = _section(page, "map")
    assert "E 1.7" in section and "E new" in section
    assert "67%" in section


def test_emulated_and_simulated_values_are_compared(page: str) -> None:
    section = _section(page, "agreement")
    assert "14 of 16 quantities agree within 15%" in section
    assert "□ -17%" in section  # 10 simulated, 12 emulated


def test_what_is_not_there_is_left_out_with_its_command(tmp_path: Path) -> None:
    page = _page(tmp_path, {"part": EVERYTHING["part"]})
    assert re.findall('<section id="([^"]*)">', page) == ["legend", "losses", "components", "origins"]
    for name in ("regimes", "grid", "grid-adapted", "map", "peer"):
        assert f"{name}.json is not there yet: <code>" in page


def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    few = {name: EVERYTHING[name] for name in ("grid", "part")}
    assert _page(tmp_path, few) == _page(tmp_path, few)


def test_a_folder_without_results_is_told_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "report", "--folder", str(tmp_path / "none")]) == 3
    assert "make bench" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{")
    assert main(["bench", "report", "--folder", str(tmp_path)]) == 2
    assert "bad.json is not JSON" in capsys.readouterr().err


def test_the_table_of_components_passes_other_results_over(tmp_path: Path) -> None:
    machine = {"machine": {"load_average": [0.1], "cpu": "c", "cores": 2}, "python": "3.11"}
    part = _component() | {"provenance": ORIGIN | machine}
    (tmp_path / "part.json").write_text(json.dumps(part))
    (tmp_path / "grid.json").write_text(json.dumps(_grid()))
    table = write_readme(tmp_path).read_text()
    assert "Part: case" in table
    assert "Grid" not in table
