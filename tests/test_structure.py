"""README.md, CONTRIBUTING.md and docs/structure.md name only what exists; what they have people type works."""

import ast
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import httpx
import pytest

from lab.testbed.processes import Process
from lab.testbed.reference import Reference
from opensled.cli import config
from opensled.cli.main import CONFIGS, VERBS, _parser
from opensled.models.store import model_path
from tests.commands import opensled
from tests.drafter_contract import DrafterContract
from tests.home_page import anchors

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


def test_helpers_of_tests_are_listed_and_no_test_module_imports_another():
    modules = sorted((ROOT / "tests").glob("*.py"))
    helpers = [path.stem for path in modules if not path.stem.startswith(("test_", "__", "conftest"))]
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.py\) \|", (ROOT / "tests/README.md").read_text(), re.M)
    assert sorted(listed) == helpers
    imports = re.compile(r"^\s*(from tests(\.\w+)*\.test_|from tests import .*\btest_)", re.M)
    importing = [path.name for path in (ROOT / "tests").rglob("*.py") if imports.search(path.read_text())]
    assert importing == ["test_mutants.py"], "which calls tests as they are"


# -- what the README tells people to type -----------------------------------------------------------------------


SHELL = [block.replace("\\\n", " ") for block in re.findall(r"```sh\n(.*?)```", README, re.S)]
PYTHON = re.findall(r"```python\n(.*?)```", README, re.S)
COMMANDS = [
    shlex.split(line, comments=True)
    for block in SHELL
    for line in block.splitlines()
    if line.strip() and not line.startswith("#")
]
OPENSLED = [words[1:] for words in COMMANDS if words[0].endswith("opensled")]


VERBS_RUN = ("serve", "edge", "generate")


def test_there_are_commands_to_try():
    assert len(OPENSLED) >= 5 and len(PYTHON) == 1


@pytest.mark.parametrize("words", OPENSLED, ids=" ".join)
def test_every_flag_exists(words):
    verb = next(name for name in (" ".join(words[:2]), words[0]) if name in VERBS)
    _parser(verb, config.options(CONFIGS.get(verb))).parse_args(words[len(verb.split()) :])


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] == "make"], ids=" ".join)
def test_every_make_target_exists(words):
    subprocess.run([*words, "-n"], cwd=ROOT, check=True, capture_output=True)


def test_the_commands_and_the_snippet_run_as_written(monkeypatch):
    """As written, but for the ports: they come from the environment, which flags would override."""
    serve, edge, generate = (next(words for words in OPENSLED if words[0] == verb) for verb in VERBS_RUN)
    monkeypatch.setenv("OPENSLED_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("OPENSLED_HTTP", "127.0.0.1:0")
    with Process(serve) as server:
        monkeypatch.setenv("OPENSLED_SERVER", server.wait_ready())
        answer = opensled(*generate)
        assert answer.returncode == 0 and answer.stdout.strip()
        with Process(edge) as device:
            snippet = PYTHON[0].replace("127.0.0.1:8411", device.wait_ready())
            printed = subprocess.run(
                [sys.executable, "-c", snippet],
                capture_output=True,
                text=True,
                timeout=120,
                env={**os.environ},
            )
            assert printed.returncode == 0 and printed.stdout.strip()


# -- CONTRIBUTING.md's drafter and table ------------------------------------------------------------------------


PAGE = (ROOT / "CONTRIBUTING.md").read_text()
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
TYPED = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.S)).splitlines()
ROWS = [line.split(" | ") for line in PAGE.splitlines() if "| `tests/" in line]
# It waits for every draft: whether one is accepted does not hang on the speed of the machine.
SETTINGS = {"OPENSLED_DTYPE": "float64", "OPENSLED_POLICY": "fcfs", "OPENSLED_DRAFT_WAIT": "inf"}
LOOPBACK = {"OPENSLED_LISTEN": "127.0.0.1:0", "OPENSLED_HTTP": "127.0.0.1:0"}
CHAT = [{"role": "user", "content": "Write a short story about a rabbit in the big city."}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where bigrams.py is."""
    found = tmp_path_factory.mktemp("contributed")
    (found / "bigrams.py").write_text(CODE)
    return found


class TestBigrams(DrafterContract):
    @pytest.fixture(scope="class")
    @classmethod
    def factory(cls, folder):
        sys.path.insert(0, str(folder))
        yield import_module("bigrams").Bigrams()
        sys.path.remove(str(folder))


def typed(verb: str) -> list[str]:
    """The words behind `opensled` of the command of the page."""
    (line,) = [line for line in TYPED if f"bin/opensled {verb}" in line]
    words = shlex.split(line, comments=True)
    return words[words.index(".venv/bin/opensled") + 1 :]


@pytest.fixture(scope="module")
def device(folder):
    """The URL of the API of the page's device; ports, and what keeps rounding and speed out, are not the page's."""
    with Process(typed("serve"), isolated=True, environment={**LOOPBACK, **SETTINGS}) as server:
        found = {"OPENSLED_SERVER": server.wait_ready(), "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        with Process(typed("edge"), isolated=True, environment={**LOOPBACK, **found}) as edge:
            yield f"http://{edge.wait_ready()}/v1"


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 7}])
def test_the_example_drafts_and_the_text_is_the_targets_own(device, sampling):
    body = {"model": "tiny", "messages": CHAT, "max_tokens": 120, **sampling}
    found = httpx.post(f"{device}/chat/completions", json=body, timeout=120).json()
    reference = Reference(model_path("tiny"))
    own, _ = reference.generate(reference.render_chat(CHAT), max_tokens=120, **sampling)
    assert found["choices"][0]["message"]["content"] == reference.decode(own)
    details = found["usage"]["completion_tokens_details"]
    assert found["usage"]["completion_tokens"] == len(own)
    assert details["rejected_prediction_tokens"] > 0  # it drafts
    assert details["accepted_prediction_tokens"] > 0 or sampling["temperature"]  # and it helps


def test_the_example_is_twenty_lines():
    assert 15 <= len([line for line in CODE.splitlines() if line]) <= 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| "))
def test_a_part_has_its_place_its_registry_and_its_flag(row):
    _, folder, registry, flag, tests = row
    (name, file) = re.findall(r"`([^`]+)`", registry)
    assert re.search(rf"^{name}\b", (ROOT / file).read_text(), re.M), file
    verb, _, option = flag.strip("` ").partition(" --")
    if option:
        assert f"--{option}" in {item.flag for item in config.options(CONFIGS.get(verb))}
        assert verb in VERBS
    for path in re.findall(r"`([^`]+/)`|`(tests/[^`]+)`", folder + tests):
        assert (ROOT / "".join(path)).exists()


def test_there_are_rows_to_try():
    assert len(ROWS) == 7 and len(TYPED) == 4
