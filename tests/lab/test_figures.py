"""Figures are data: what is too old, which file belongs to which part, and numbers of pages that are not the data's."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.benchmarks import FIGURES, figures, peer_server, serving
from lab.benchmarks.cited import cited, faults, main, renewed

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_file_belongs_to_a_part_and_every_part_has_a_program():
    known = {file for part in figures.PARTS for file in part.files}
    there = {path.name for path in (ROOT / "docs/benchmarks").glob("*.json")}
    assert there <= known | figures.CLOSED.keys() and figures.CLOSED.keys() <= there
    for part in figures.PARTS:
        assert importlib.util.find_spec(part.module), part.module
        assert part.rests_on and all((ROOT / path).exists() for path in part.rests_on), part.name
    assert len({part.name for part in figures.PARTS}) == len(figures.PARTS)


def test_what_rests_on_code_that_changed_is_stale(tmp_path):
    def put(name, commit):
        (tmp_path / name).write_text(json.dumps({"provenance": {"commit": commit}}))

    for part in figures.PARTS:
        for file in part.files:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            if file.endswith(".json"):
                put(file, "new")
    put("rounds.json", "old+")
    put("edge_loop.json", "gone")
    put("planner.json", "")
    (tmp_path / "overload.json").unlink()
    found = figures.stale(tmp_path, lambda commit, paths: {"new": 0, "old": 3, "gone": -1}[commit])
    assert [each.file for each in found] == ["rounds.json", "edge_loop.json", "planner.json", "overload.json"]
    told = "\n".join(map(str, found))
    assert "3 commits have touched" in told and "never measured" in told
    assert "not here" in told and "does not say where it comes from" in told


def test_commits_are_counted_by_git():
    assert figures.commits_since("HEAD", ("opensled",)) == 0
    assert figures.commits_since("0" * 40, ("opensled",)) == -1


def test_parts_are_measured_in_turn_and_one_that_fails_stops_none(monkeypatch, capsys):
    ran = []

    def run(command):
        ran.append(command[2])
        return type("Run", (), {"returncode": int("edge_loop" in command)})

    monkeypatch.setattr(figures.subprocess, "run", run)
    assert figures.main(["edge_loop", "grid smollm2", "quick"]) == 1
    assert ran == ["lab.benchmarks", "lab.benchmarks.grid", "lab.benchmarks.quick"]
    lines = capsys.readouterr().out.splitlines()
    assert sum("FAILED" in line for line in lines) == 1 and lines[-1].startswith("all")
    assert figures.main(["gpu"]) == 2 and "benchmarks/gpu/run.sh" in capsys.readouterr().err
    assert figures.main(["nothing"]) == 2 and "there are rounds" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "stays"), [(0, True), (2, False)])
def test_a_program_that_goes_on_does_not_go_on_with_a_stale_file(monkeypatch, tmp_path, count, stays):
    monkeypatch.setattr(figures.subprocess, "run", lambda command: type("Run", (), {"returncode": 0}))
    monkeypatch.setattr(figures, "commits_since", lambda commit, paths: count)
    for name in ("real_prompts.json", "overload.json"):
        (tmp_path / name).write_text(json.dumps({"provenance": {"commit": "one"}}))
    assert figures.main(["real prompts, torch", "overload", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "real_prompts.json").exists() is stays and (tmp_path / "overload.json").exists()


def test_a_changed_digit_is_found(tmp_path):
    data = {"cells": [{"name": "8 users", "ratio": 1.4162}], "share": 0.123, "count": 12345}
    (tmp_path / "a.json").write_text(json.dumps(data))
    page = tmp_path / "page.md"
    right = (
        "| 1.42x<!-- a.json: cells / 8 users / ratio --> | 12 %<!-- a.json: share --> |\n"
        "12,345 of them<!-- a.json: count -->, 1.4<!-- a.json: cells / 0 / ratio -->\n"
        "12.3<!-- a.json: share * 100 --> points\n"
    )
    page.write_text(right)
    assert faults(page, tmp_path) == [] and len(list(cited(right))) == 5
    page.write_text(right.replace("1.42x", "1.43x"))
    (fault,) = faults(page, tmp_path)
    assert fault.endswith("page.md:1: the page says 1.43, a.json 1.42")
    wrong = right.replace("1.42x", "1.43x").replace("12 %", "8 %").replace("12,345", "2,000")
    assert renewed(wrong, tmp_path) == right
    page.write_text("1<!-- a.json: nothing --> 1<!-- b.json: x --> 1<!-- a.json: cells / 3 / ratio -->")
    assert len(faults(page, tmp_path)) == 3 and renewed(page.read_text(), tmp_path) == page.read_text()
    page.write_text("words<!-- a.json: share -->")
    assert "no number stands before it" in faults(page, tmp_path)[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_numbers_of_a_page_are_those_of_its_data(page):
    assert faults(page, ROOT / "docs/benchmarks") == []


COMMAND = re.compile(r"python -m (lab[\w.]*)(?: (\w+))?")


# The changelog names those of its time
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda path: path.name
)
def test_a_page_names_programs_that_are_there(page):
    for module, word in COMMAND.findall(page.read_text()):
        assert importlib.util.find_spec(module), module
        assert module != "lab.benchmarks" or word in ("", *FIGURES.names()), f"{module} {word}"


def test_the_command_says_what_differs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main([]) == 0
    page = tmp_path / "page.md"
    page.write_text("99<!-- serving.json: nothing -->")
    assert main([str(page)]) == 1 and "has no nothing" in capsys.readouterr().out


def test_a_peer_that_is_not_installed_is_named_before_anything_is_loaded(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(peer_server, "find_spec", lambda name: None)
    assert serving.main(["--quick"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: llama.cpp's server needs one more package: ") and "[bench]" in line


@pytest.mark.parametrize(("figure", "library"), [("serving", "llama_cpp"), ("grid", "numpy")])
def test_a_library_that_is_not_installed_is_named_with_its_extra(figure, library):
    program = f"sys.modules[{library!r}] = None; run_module('lab.benchmarks.{figure}', run_name='__main__')"
    words = [sys.executable, "-c", f"import sys; from runpy import run_module; {program}"]
    ended = subprocess.run(words, capture_output=True, text=True)
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 1 and line.startswith("error: ") and "pip install" in line
