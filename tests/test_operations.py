"""docs/operations.md, troubleshooting.md and cluster.md: messages, flags and commands exist."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from opensled.cli import config
from opensled.cli.main import CONFIGS, VERBS, _parser

ROOT = Path(__file__).parents[1]
TROUBLES = (ROOT / "docs/troubleshooting.md").read_text()
PAGE = "\n".join(
    [TROUBLES, *((ROOT / "docs" / name).read_text() for name in ("cluster.md", "operations.md"))]
)
PACKAGES = ("opensled", "http_api", "edge_client", "verify_server", "scheduler", "hw_profiles", "home")


def templates():
    """Every text in the sources; what a formatted one fills in is an ellipsis."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(
                        part.value if isinstance(part, ast.Constant) else "…" for part in node.values
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield re.sub(r"%[dsg]", "…", node.value)


def quoted():
    """The messages of the troubleshooting tables: at the beginning of a row, in one pair of backticks, with a blank."""
    cells = re.findall(r"^\| `([^`]+)`", TROUBLES, re.M)
    return [cell for cell in cells if " " in cell]


def test_every_message_quoted_is_a_real_one():
    texts = list(templates())
    assert len(quoted()) > 50
    for message in quoted():
        parts = [re.escape(part.strip("… ")) for part in message.split("…")]
        pattern = re.compile(".*".join(part for part in parts if part), re.S)
        assert any(pattern.search(text) for text in texts), message


def commands():
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if "bin/opensled " in line]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_parses(words):
    _, verb, *arguments = words
    assert _parser(verb, config.options(CONFIGS.get(verb))).parse_args(arguments)


def test_every_flag_named_exists():
    known = {flag for verb in VERBS for item in config.options(CONFIGS.get(verb)) for flag in item.flags}
    # Of pip, systemd and others; of Docker and kubectl; of Ray; of vLLM
    foreign = """--no-index --find-links --platform --only-binary --no-deps --batch --offline --now --version
    --kill-whom --user --build-arg --cap-drop --detach --env --file --from-file --gpus --publish
    --read-only --restart --security-opt --shm-size --stop-timeout --tag --tmpfs --mount --name
    --time --volume --head --address --port --node-ip-address --include-dashboard --generate
    --opensled --shutdown-timeout"""
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) - set(foreign.split()) <= known
