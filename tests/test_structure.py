"""README.md, CONTRIBUTING.md and docs/structure.md name only what exists: files, folders, code and links."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from opensled.cli import config
from opensled.cli.main import CONFIGS, VERBS

ROOT = Path(__file__).parents[1]
STRUCTURE = (ROOT / "docs/structure.md").read_text()
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
MAX_LINES = 59
QUESTIONS = ("late draft", "makes the hints", "rolls the KV back", "tokens reach the API")


def spans(page: str) -> list[str]:
    """What stands in single backticks, outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page, flags=re.S))


def paths(page: str) -> list[str]:
    return [span for span in spans(page) if re.fullmatch(r"[\w.-]+(/[\w.-]*)+", span)]


def identifiers(text: str) -> list[str]:
    """Names of Python: `function`, `Class`, `Class.method`."""
    return [span for span in spans(text) if re.fullmatch(r"[A-Za-z_]\w*(\.[a-z_]\w*)?", span)]


@cache
def defined(path: Path) -> frozenset[str]:
    """Classes, functions, and methods as Class.method, at the top of a file."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            names.update(f"{node.name}.{method.name}" for method in methods)
    return frozenset(names)


HOPS = [line for line in STRUCTURE.splitlines() if re.match(r"\| \d+ \|", line)]


@pytest.mark.parametrize("path", [*paths(STRUCTURE), *paths(README), *paths(CONTRIBUTING)])
def test_every_path_exists(path):
    found = ROOT / path
    assert found.is_dir() if path.endswith("/") else found.is_file()


NAMING = [line for line in STRUCTURE.splitlines() if ".py`" in line]


@pytest.mark.parametrize("line", NAMING, ids=lambda line: paths(line)[0])
def test_a_line_names_what_its_files_define(line):
    files = [ROOT / path for path in paths(line) if path.endswith(".py")]
    names = identifiers(line)
    assert files and names
    assert set(names) <= frozenset().union(*map(defined, files))


def test_there_is_something_to_check():
    assert len(HOPS) == 10 and len(NAMING) > 10
    assert len(paths(STRUCTURE)) >= 40
    assert sum(len(identifiers(hop)) for hop in HOPS) >= 15


def test_the_page_stays_one_page():
    assert len(STRUCTURE.splitlines()) <= MAX_LINES


def test_a_reader_finds_each_answer_in_fewer_than_three_files():
    for question in QUESTIONS:
        answers = [hop for hop in HOPS if f"**{question}**" in hop]
        assert len(answers) == 1, question
        assert 1 <= len(paths(answers[0])) < 3, question


def test_every_package_is_on_the_page():
    tops = ("opensled", "http_api", "edge_client", "verify_server", "scheduler", "hw_profiles")
    tops += ("lab.training", "lab.testbed")
    packages = {found.parent for top in tops for found in (ROOT / top).rglob("__init__.py")}
    generated = {ROOT / "opensled/v1"}
    missing = {str(path.relative_to(ROOT)) + "/" for path in packages - generated} - set(paths(STRUCTURE))
    assert not missing


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"`(--[a-z-]+)", README))))
def test_every_flag_of_the_readme_exists(flag):
    assert flag in {
        known for verb in VERBS for item in config.options(CONFIGS.get(verb)) for known in item.flags
    }


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


LINKS = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]


def test_there_are_links_to_check():
    assert len(LINKS) >= 60


@pytest.mark.parametrize(("page", "link"), LINKS, ids=[f"{page.name}-{link}" for page, link in LINKS])
def test_every_link_leads_somewhere(page, link):
    if link.startswith("https://"):
        return
    target, _, anchor = link.partition("#")
    file = (page.parent / target).resolve() if target else page
    assert file.exists()
    assert not anchor or anchor in anchors(file)
