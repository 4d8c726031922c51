"""CONTRIBUTING.md: its drafter drafts behind a real server as written, and its table names what there is.

Its links and paths: tests/test_structure.py.
"""

import os
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import httpx
import pytest

from lab.testbed.processes import Process
from lab.testbed.reference import Reference
from opensled.cli import config
from opensled.cli.main import CONFIGS, VERBS
from opensled.models.store import model_path
from tests.drafter_contract import DrafterContract

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
SHELL = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.S)).splitlines()
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
    (line,) = [line for line in SHELL if f"bin/opensled {verb}" in line]
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


def test_there_is_something_to_check():
    assert len(ROWS) == 7 and len(SHELL) == 4
