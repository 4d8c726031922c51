"""What OpenSLED writes on a machine: its own folders and nothing else, whatever its libraries do by default."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import opensled
from edge_client.drafters import plain_names
from lab.testbed.processes import Process
from opensled.models.store import model_path

# Below the home folder; docs/security.md ("What leaves a device") lists them.
OURS = (".cache/opensled/", ".config/opensled/", ".local/state/opensled/")
DRAFTERS = (*plain_names(), "chain:cacheback,onnx", "accelerated:llamacpp")

# Runs commands, each a list of words, in one process, which saves their imports.
RUN_ALL = """
import json, sys
from opensled.cli.main import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0, words
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder of which nobody knows another place; none of our variables say where to write."""
    for name in os.environ:
        if name.startswith(("XDG_", "OPENSLED_", *opensled.NO_REPORTS)):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def written(home: Path) -> set[str]:
    """Files below the home folder."""
    return {path.relative_to(home).as_posix() for path in home.rglob("*") if not path.is_dir()}


def strange(home: Path) -> list[str]:
    return sorted(name for name in written(home) if not name.startswith(OURS))


def run(*commands: list[str]) -> None:
    given = [sys.executable, "-c", RUN_ALL, json.dumps(commands)]
    done = subprocess.run(given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_onnxruntime_reports_nothing(home):
    """Release 1.31 writes a number of this machine and events at its import, and sends them."""
    model = model_path("tiny-draft")
    load = f"from edge_client.drafters.onnx import OnnxFactory; OnnxFactory({str(model)!r})"
    subprocess.run([sys.executable, "-c", load], check=True, timeout=60)
    assert written(home) == set()


def test_a_value_of_the_users_own_stays(monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "0")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    show = "import os, opensled; print(*(os.environ[name] for name in opensled.NO_REPORTS))"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]


@pytest.mark.long
def test_a_device_writes_into_its_own_folders(home, tmp_path):
    (tmp_path / "notes.txt").write_text("the kitchen light, the hall light")
    with Process(["serve", "--model", "tiny", "--listen", "127.0.0.1:0", "--threads", "1"]) as server:
        at = ["--server", server.wait_ready(60)]
        ask = ["generate", *at, "Turn on the light.", "--max-tokens", "8", "--drafter"]
        run(
            *([*ask, drafter] for drafter in DRAFTERS),
            ["doctor", *at, "--drafter", "onnx"],
            ["profile", "list"],
            ["profile", "detect"],
            ["profile", "calibrate", *at],
            ["draft-tables", "build", "--corpus", "notes.txt", "--out", "notes.table"],
            ["config", "init"],
            ["models", "list"],
        )
        with Process(["edge", *at, "--http", "127.0.0.1:0"]) as edge:
            edge.wait_ready(60)
    assert strange(home) == []
    kinds = {name.split("/")[0] for name in written(home)}
    assert kinds == {".cache", ".config"}  # the tokenizer and the calibration: the right folder was looked at


@pytest.mark.long
def test_a_server_and_the_demo_write_nothing_else(home, cold_start):
    with Process(["serve", "--model", "tiny", "--listen", "127.0.0.1:0", "--threads", "1"]) as server:
        server.wait_ready(60)
    run(
        ["plan", "--devices", "pi-5", "--link", "wifi-good", "--target", "dense-8b", "--pace", "10"],
        ["models", "eval", "--items-per-task", "1"],
        ["demo", "--model", "tiny"],
    )
    assert strange(home) == []
