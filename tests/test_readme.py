"""What the README tells people to type works. Its links: tests/test_structure.py."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lab.testbed.processes import Process
from opensled.cli import config
from opensled.cli.main import CONFIGS, VERBS, _parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
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


def test_there_is_something_to_check():
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
        answer = subprocess.run(
            [sys.executable, "-m", "opensled", *generate], capture_output=True, text=True, timeout=120
        )
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
