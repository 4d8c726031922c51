"""The HTML report from small made-up results: pytest tests/lab/test_report.py -q"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lab.benchmarks.readme import write_readme
from lab.testbed.report import cell_figures as cells
from lab.testbed.report.plots import INK
from opensled.cli.main import main
from tests.lab.report_results import (
    EVERYTHING,
    LOSES,
    ORIGIN,
    WINS,
    cell_of,
    component,
    grid,
    page_of,
    regimes,
    section_of,
)

SECTIONS = (
    "summary",
    "legend",
    "claims",
    "losses",
    "cells",
    "capacity",
    "agreement",
    "grid",
    "grid-code",
    "map",
    "peer",
    "components",
    "more",
    "origins",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(tmp_path_factory.mktemp("results"), EVERYTHING)


def test_the_page_has_every_section_and_a_way_to_it(page: str) -> None:
    assert re.findall('<section id="([^"]*)">', page) == list(SECTIONS)
    assert all(f'<a href="#{anchor}">' in page for anchor in SECTIONS)
    assert "is not there yet" not in page and "PARTIAL" not in page
    assert "Grid: opensled" in section_of(page, "origins")  # measured later than the rest of its file


def test_each_figure_names_its_file_command_and_label(page: str) -> None:
    for anchor, file, label in (
        ("cells", "regimes", "emulated"),
        ("grid", "grid", "simulated"),
        ("grid-code", "grid-code", "simulated"),
        ("map", "map", "derived"),
        ("peer", "peer", "real"),
        ("components", "part", "real"),
    ):
        section = section_of(page, anchor)
        assert f'<a href="../{file}.json">' in section  # from where the page lies
        assert "<code>make bench</code>" in section
        assert f'<span class="badge {label}"' in section


def test_text_of_the_results_is_escaped(page: str) -> None:
    assert "<script" not in page
    assert "&lt;script&gt;alert" in section_of(page, "cells")
    assert "&lt;script&gt;alert" in section_of(page, "components")


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    assert "://" not in page
    links = re.findall(r'(?:href|src)="([^"#][^"]*)"', page)
    assert set(links) == {f"../{name}.json" for name in EVERYTHING if name != "not-ours"}


def test_plots_take_the_colours_of_thepage_of(page: str) -> None:
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
    section = section_of(page, "cells")
    assert '<td class="number">12 ±4.97</td>' in section  # t(2) * 2 / sqrt(3) = 4.97
    assert "Throughput of OpenSLED: 1.83x of centralized." in section
    assert "Throughput: 1.85x of centralized (95 %: 1.49 to 2.21)." in section  # repeat by repeat
    assert "Pace of a user: 0.52x of centralized" in section


def test_losing_cells_are_marked_in_words_and_in_the_plot(page: str) -> None:
    good, bad = section_of(page, "cells").split("<h3>")[1:]
    assert "▼" not in good
    assert "behind centralized" in bad
    assert ">▼ 11<" in bad.replace("\n", "")  # the number beside the bar


def test_where_we_lose_holds_every_loss(page: str) -> None:
    section = section_of(page, "losses")
    assert "good cell" not in section
    assert section.count("&lt;script&gt;") == 3  # pace, throughput, capacity
    assert "48% worse" in section
    assert section.count("1 of 2 comparisons are lost to the best of centralized") == 2  # on both grids
    assert "0.87x" in section
    assert "case (0.50x)" in section


def test_a_loss_within_noise_says_so() -> None:
    wide = {"centralized": [10.0, 20.0, 30.0], "opensled": [9.0, 19.0, 29.0]}
    assert [loss.clear for loss in cells.losses(cell_of("a", wide))] == [False, False]
    assert [loss.clear for loss in cells.losses(cell_of("a", LOSES))] == [True, True]
    assert [loss.rival for loss in cells.losses(cell_of("a", LOSES))] == ["centralized", "centralized"]
    assert cells.losses(cell_of("a", WINS)) == []


def test_a_single_repeat_shows_no_clear_loss() -> None:
    one = {"centralized": [20.0], "opensled": [10.0]}
    assert [loss.clear for loss in cells.losses(cell_of("a", one))] == [False, False]


def test_pipesd_is_a_rival_and_its_thresholds_are_told(tmp_path: Path) -> None:
    triggers = {"pipesd": {"draft_length": 8, "product": 0.25, "newest": 0.5}}
    cell = cell_of(
        "a", WINS | {"pipesd": [90.0, 90.0, 90.0]}, draft_lengths={"server-sd": 2}, triggers=triggers
    )
    assert {loss.rival for loss in cells.losses(cell)} == {"pipesd"}
    told = "a: 16 users who want 15 tokens/s; draft length: server-sd 2; pipesd: R1 0.25, R2 0.5"
    assert told in page_of(tmp_path, {"regimes": regimes(cell)})


def test_the_draft_alone_is_no_rival() -> None:
    assert cells.losses(cell_of("a", WINS | {"device-only": [90.0, 90.0, 90.0]})) == []


def test_claims_are_counted_cell_bycell_of(page: str) -> None:
    section = section_of(page, "claims")
    last = section[section.index("reproduced in") :]
    # SLED's four gains, then WISP's two losses
    assert re.findall(r"(\d of \d) cells", last) == ["0 of 2"] * 4 + ["2 of 2"] * 2
    assert "0.75x" in section


def test_claims_are_counted_on_both_grids(page: str) -> None:
    section = section_of(page, "claims")
    assert all(
        f"<h3>{title}" in section for title in ("The whole grid", "The short grid, 80% of the drafts right")
    )
    # Continuous batches lose at the one place that can be rated, on each grid
    assert section.count("1 of 1") == 2


def test_the_grid_marks_what_is_below_centralized(page: str) -> None:
    section = section_of(page, "grid")
    assert "▼0.87" in section
    assert ">new<" in section.replace("\n", "").replace(" ", "")
    assert "1 of 1" in section


def test_the_summary_comes_first_and_has_a_column_for_opensled(page: str) -> None:
    section = section_of(page, "summary")
    assert page.index('id="summary"') < page.index('id="claims"')
    assert '<th class="number">OpenSLED</th>' in section
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr>.*?</tr>", section)]
    good = next(row for row in rows if row and row[0] == "good cell")
    assert good[2:] == ["–", "0.50x", "0.75x", "1.83x", "1.83x"]
    assert "A peer: case" in section


def test_every_file_that_says_where_it_is_from_has_a_place(page: str) -> None:
    section = section_of(page, "more")
    assert "1 of 2 are within 25%" in section and "+20%" in section
    assert '<a href="../other_form.json">' in section
    assert "not-ours" not in page


def test_one_is_no_plural(tmp_path: Path) -> None:
    part = component("Streams")
    part["ratios"][0]["name"] = "1 streams, 21 sessions, at 1 tokens/s"
    page = page_of(tmp_path, {"part": part})
    assert "1 stream, 21 sessions, at 1 tokens/s" in page and "1 streams" not in page


def test_red_is_for_what_opensled_loses(page: str) -> None:
    claims, agreement = section_of(page, "claims"), section_of(page, "agreement")
    assert claims.count('class="loss"') == 2  # its throughput and capacity in the cell that it loses
    assert 'class="loss"' not in agreement


def test_the_map_names_mode_and_gain(page: str) -> None:
    section = section_of(page, "map")
    assert "E 1.7" in section and "E new" in section
    assert "67%" in section


def test_emulated_and_simulated_values_are_compared(page: str) -> None:
    section = section_of(page, "agreement")
    assert "14 of 16 quantities agree within 15%" in section
    assert "□ -17%" in section  # 10 simulated, 12 emulated


def test_what_is_not_there_is_left_out_with_its_command(tmp_path: Path) -> None:
    page = page_of(tmp_path, {"part": EVERYTHING["part"]})
    assert re.findall('<section id="([^"]*)">', page) == ["legend", "losses", "components", "origins"]
    for name in ("regimes", "grid", "map", "peer"):
        assert f"{name}.json is not there yet: <code>" in page


def test_the_same_results_give_the_samepage_of(tmp_path: Path) -> None:
    few = {name: EVERYTHING[name] for name in ("grid", "part")}
    assert page_of(tmp_path, few) == page_of(tmp_path, few)


def test_ctrl_c_leaves_a_page_of_what_is_drawn_which_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lab.testbed.report.components.section", interrupt)
    (tmp_path / "part.json").write_text(json.dumps(EVERYTHING["part"]))
    out = tmp_path / "report.html"
    assert main(["bench", "report", "--folder", str(tmp_path), "--out", str(out)]) == 130
    told = "PARTIAL: 3 of 5 parts were made before Ctrl-C"
    assert told in capsys.readouterr().out and told in out.read_text("utf-8")
    assert re.findall('<section id="([^"]*)">', out.read_text("utf-8")) == ["legend", "losses"]


def test_a_folder_without_results_is_told_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "report", "--folder", str(tmp_path / "none")]) == 3
    assert "make bench" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{")
    assert main(["bench", "report", "--folder", str(tmp_path)]) == 2
    assert "bad.json is not JSON" in capsys.readouterr().err


def test_the_table_of_components_passes_other_results_over(tmp_path: Path) -> None:
    machine = {"machine": {"load_average": [0.1], "cpu": "c", "cores": 2}, "python": "3.11"}
    part = component() | {"provenance": ORIGIN | machine}
    (tmp_path / "part.json").write_text(json.dumps(part))
    (tmp_path / "grid.json").write_text(json.dumps(grid()))
    table = write_readme(tmp_path).read_text()
    assert "Part: case" in table
    assert "Grid" not in table
