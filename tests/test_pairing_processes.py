"""A home from nothing, with real processes: `serve --paired`, `pair`, `edge --pair`, and a chat through the device."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest

from lab.testbed.processes import Process
from opensled.cli.main import main
from tests.pairing_world import HERE, port_of

QUESTION = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Turn on the kitchen light."}],
    "temperature": 0,
}


class Machine:
    """One user's folders, apart from all others."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {"XDG_CONFIG_HOME": str(folder), "OPENSLED_CACHE_DIR": str(folder / "cache")}

    def start(self, *words):
        return Process(words, environment=self.environment, log=self.folder / "log")

    def run(self, *words, code=0):
        """Standard output of a command that ends with this code, and what it says on standard error."""
        done = subprocess.run(
            [sys.executable, "-m", "opensled", *words],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    @contextmanager
    def pairing(self, *words):
        """`opensled pair` that waits; yields what it shows at first."""
        process = subprocess.Popen(
            [sys.executable, "-m", "opensled", "pair", "--json", "--listen", f"{HERE}:0", *words],
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def server(tmp_path):
    (tmp_path / "server").mkdir()
    return Machine(tmp_path / "server")


@pytest.fixture
def pi(tmp_path):
    (tmp_path / "pi").mkdir()
    return Machine(tmp_path / "pi")


def ask(device):
    answer = httpx.post(f"http://{device.address}/v1/chat/completions", json=QUESTION, timeout=60)
    return answer.json()


def test_a_home_from_nothing(server, pi):
    with server.start("serve", "--paired", "--model", "tiny", "--listen", "0.0.0.0:0") as serving:
        port = str(port_of(serving.wait_ready()))
        with server.pairing("--server-port", port) as (pairing, shown):
            words = shown["command"].split()[1:]
            with pi.start(*words, "--http", f"{HERE}:0", "--device-name", "kitchen") as device:
                device.wait_ready()
                text = ask(device)["choices"][0]["message"]["content"]
            told = json.loads(pairing.communicate(timeout=60)[0])
        assert pairing.returncode == 0
        assert told["paired"]["name"] == "kitchen" and told["paired"]["server"] == f"{HERE}:{port}"
        assert json.loads(text)["tool"] == "light.switch"
        # From now on without any flag
        alone, _ = pi.run("generate", "Turn on the kitchen light.")
        assert alone.strip() == text
        # Another server gets neither TLS nor token of the pairing
        pi.run("generate", "--server", f"localhost:{port}", "x", code=5)
        assert [each["name"] for each in json.loads(server.run("pair", "list", "--json")[0])] == ["kitchen"]
        assert "kitchen is withdrawn" in server.run("pair", "revoke", "kitchen")[0]
        assert "pair this device again" in pi.run("generate", "x", code=4)[1]
        server.run("pair", "revoke", "kitchen", code=3)


def test_a_wrong_code_and_one_that_nobody_shows(server, pi):
    with server.pairing() as (pairing, shown):
        place = shown["listening"]
        wrong = "1111-1111" if shown["code"] != "1111-1111" else "2222-2222"
        for _ in range(3):
            assert "not the one that the server shows" in pi.run("edge", "--pair", wrong, place, code=4)[1]
        _, error = pairing.communicate(timeout=60)
        assert pairing.returncode == 1 and "withdrawn after 3 wrong guesses; run opensled pair again" in error
    assert "run opensled pair on the server" in pi.run("edge", "--pair", shown["code"], place, code=5)[1]
    assert server.run("pair", "list", "--json")[0] == "[]\n"


def test_a_code_expires(server, pi):
    with server.pairing("--minutes", "0.02") as (pairing, shown):
        assert shown["expires"] <= time.time() + 2
        _, error = pairing.communicate(timeout=60)
    assert pairing.returncode == 1 and "expired" in error
    pi.run("edge", "--pair", shown["code"], shown["listening"], code=5)


def test_ctrl_c_withdraws_the_code(server, pi):
    with server.pairing() as (pairing, shown):
        pairing.send_signal(signal.SIGINT)
        assert pairing.wait(20) == 130
    pi.run("edge", "--pair", shown["code"], shown["listening"], code=5)


def test_looking_makes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["pair", "list"]) == 0 and "no device is paired" in capsys.readouterr().out
    assert main(["pair", "revoke", "kitchen"]) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--paired", "--tokens", "x"),
        ("serve", "--folder", "x"),
        ("serve", "--announce"),
        ("pair", "--announce", "--listen", f"{HERE}:0"),
        ("pair", "--minutes", "0"),
        ("edge", "192.0.2.1"),
        ("edge", "--server", "mdns"),
        ("chat", "--server", "mdns"),
        ("generate", "--server", "mdns", "x"),
    ],
    ids=" ".join,
)
def test_flags_that_make_no_sense(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main([*words]) == 2
    assert capsys.readouterr().err.startswith("error: ")
