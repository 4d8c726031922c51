"""docs/operations.md, docs/cluster.md and deploy/systemd: messages, flags, files and metrics of the queries exist."""

import ast
import re
import shlex
from configparser import ConfigParser
from pathlib import Path

import pytest

from edge_client.config import EdgeConfig
from opensled import config
from opensled.cli import CONFIGS, VERBS, _parser
from verify_server.config import ServeConfig

ROOT = Path(__file__).parents[1]
PAGE = "\n".join((ROOT / "docs" / name).read_text() for name in ("cluster.md", "operations.md"))
UNITS = ROOT / "deploy/systemd"
PACKAGES = ("opensled", "http_api", "edge_client", "verify_server", "scheduler", "hw_profiles")
VERB_OF = {"opensled-serve": "serve", "opensled-edge": "edge"}


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
    """The messages of the troubleshooting tables: first column, in one pair of backticks, with a blank."""
    section = PAGE.split("## Troubleshooting")[1]
    cells = re.findall(r"^\| `([^`]+)` \|", section, re.M)
    return [cell for cell in cells if " " in cell]


def test_every_message_quoted_is_a_real_one():
    texts = list(templates())
    assert len(quoted()) > 15
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
    foreign = {"--no-index", "--find-links", "--platform", "--only-binary", "--no-deps"}  # pip's
    foreign |= {"--offline", "--now", "--version", "--kill-whom"}
    # Ray's
    foreign |= {"--head", "--address", "--port", "--node-ip-address", "--include-dashboard", "--generate"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named - foreign <= known, named - foreign - known


def test_every_file_of_deploy_is_explained():
    for path in UNITS.iterdir():
        assert path.name in PAGE


def unit(name):
    """The directives of a unit, or of a drop-in: {section: [(key, value), ...]}."""
    lines = (UNITS / name).read_text().replace("\\\n", " ").splitlines()
    found = {}
    for line in lines:
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            section.append(tuple(line.split("=", 1)))
    return found


@pytest.mark.parametrize("name", VERB_OF)
def test_a_unit_starts_what_it_says(name):
    service = unit(f"{name}.service")["Service"]
    values = dict(service)
    _, verb, *arguments = shlex.split(values["ExecStart"])
    assert verb == VERB_OF[name]
    given = vars(_parser(verb, config.options(CONFIGS.get(verb))).parse_args(arguments))
    loaded = {value.split(":")[0] for key, value in service if key == "LoadCredential"}
    assert {path.removeprefix("${CREDENTIALS_DIRECTORY}/") for path in given.values()} == loaded
    assert values["Type"] == "notify" and values["DynamicUser"] == values["NoNewPrivileges"] == "yes"
    assert values["ProtectSystem"] == "strict" and values["CapabilityBoundingSet"] == ""
    # a drain must fit: DRAIN_SECONDS of the server, the graceful shutdown of uvicorn
    assert int(values["TimeoutStopSec"]) > {"serve": 30, "edge": 5}[verb]


def test_a_server_with_replicas_may_see_its_addresses_and_stop_them_all():
    alone, more = dict(unit("opensled-serve.service")["Service"]), dict(unit("replicas.conf")["Service"])
    assert "AF_NETLINK" not in alone["RestrictAddressFamilies"]
    assert more["RestrictAddressFamilies"] == "AF_NETLINK", "systemd adds it to the unit's own"
    assert int(more["TimeoutStopSec"]) > 75 > int(alone["TimeoutStopSec"])


@pytest.mark.parametrize(("name", "kind"), [("serve", ServeConfig), ("edge", EdgeConfig)])
def test_the_environment_files_name_options(name, kind):
    reader = ConfigParser()
    reader.optionxform = str
    reader.read_string("[env]\n" + (UNITS / f"{name}.env").read_text())
    resolved = config.resolve(kind, name, {}, dict(reader["env"]), [])
    assert resolved.metrics and resolved.log_level == "info"
    variables = {item.variable for item in config.options(kind)}
    units = dict(
        pair.split("=", 1)
        for pair in re.findall(r"OPENSLED_\w+=\S+", (UNITS / f"opensled-{name}.service").read_text())
    )
    assert set(reader["env"]) | set(units) - {"OPENSLED_NO_CONFIG"} <= variables
