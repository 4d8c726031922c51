"""A home from nothing with real processes, and drafts handed out in it."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from edge_client.device.config import EdgeConfig
from edge_client.device.device import connect
from lab.testbed.processes import Process
from opensled.cli import main as cli
from opensled.cli.main import main
from opensled.core.answer import Task
from opensled.core.files import write_whole
from opensled.core.messages import ChatMessage, SamplingParams
from opensled.models import store
from opensled.models.gguf_file import read_head
from tests.commands import opensled
from tests.handed_out import adapted
from tests.loops import in_loop
from tests.pairing_world import HERE, port_of
from tests.tiny_drafts import TINY_DRAFT

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
        done = opensled(*words, variables=self.environment, stdin=subprocess.DEVNULL)
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


def test_a_home_from_nothing(server, pi):
    with server.start("serve", "--paired", "--model", "tiny", "--listen", "0.0.0.0:0") as serving:
        port = str(port_of(serving.wait_ready()))
        with server.pairing("--server-port", port) as (pairing, shown):
            words = shown["command"].split()[1:]
            with pi.start(*words, "--http", f"{HERE}:0", "--device-name", "kitchen") as device:
                device.wait_ready()
                url = f"http://{device.address}/v1/chat/completions"
                text = httpx.post(url, json=QUESTION, timeout=60).json()["choices"][0]["message"]["content"]
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


# -- drafts handed out ------------------------------------------------------------------------------------------


GOOD = TINY_DRAFT / "tiny-draft-q8_0.gguf"
ASKED = (ChatMessage("user", "Turn on the kitchen light."),)


def forgetful(path: Path) -> Path:
    """A draft of tiny whose first layer says nothing any more."""
    content = bytearray(GOOD.read_bytes())
    starts = [*sorted(tensor.start for tensor in read_head(GOOD).tensors.values()), len(content)]
    for name, tensor in read_head(GOOD).tensors.items():
        if name.startswith("blk.0.") and "norm" not in name:
            end = starts[starts.index(tensor.start) + 1]
            content[tensor.start : end] = bytes(end - tensor.start)
    path.write_bytes(content)
    return path


class Homes:
    """A server with two tenants, the operator's store and key, and a device of each tenant."""

    def __init__(self, folder: Path, monkeypatch, capsys) -> None:
        self._folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        self.address, self.signers = "", dict[str, str]()
        write_whole(folder / "tokens", b"tk kitchen\ntg garage\n", private=True)
        for tenant in ("kitchen", "garage"):
            write_whole(folder / tenant, f"t{tenant[0]}".encode(), private=True)
        self.run("keygen", "--sign-key", self._key)
        self._words = ("--store", str(folder / "store"), "--sign-key", self._key, "--json")

    @property
    def _key(self) -> str:
        return str(self._folder / "drafts.key")

    def serving(self, *words: str) -> Process:
        flags = ("--model", "tiny", "--kv-tokens", "2048", "--threads", "1")
        access = ("--tokens", str(self._folder / "tokens"), "--drafts", str(self._folder / "store"))
        return Process(
            ("serve", *flags, *access, "--listen", "127.0.0.1:0", *words), log=self._folder / "log"
        )

    def run(self, *words: str, code: int = 0) -> str:
        assert cli.main(["drafts", *words]) == code
        shown = self._capsys.readouterr()
        return shown.err if code else shown.out

    def publish(self, draft: Path) -> None:
        told = json.loads(self.run("publish", str(draft), "--tenant", "kitchen", *self._words))
        self.signers["kitchen"] = told["signer"]
        self.signers["garage"] = told["signer"].replace("kitchen", "garage")

    def rollback(self) -> None:
        self.run("rollback", "kitchen", *self._words)

    def pull(self, tenant: str, *words: str, code: int = 0) -> str:
        self._monkeypatch.setenv("OPENSLED_CACHE_DIR", str(self._folder / f"{tenant}-cache"))
        access = ("--server", self.address, "--token-file", str(self._folder / tenant))
        return self.run("pull", *access, "--signer", self.signers[tenant], *words, code=code)

    def serial(self) -> int:
        return json.loads(self.pull("kitchen", "--json"))["serial"]

    @in_loop
    async def answer(self, **config: object):
        """Of the kitchen's device: its text, the name of its drafter, and tokens a round."""
        place = {"server": self.address, "token_file": str(self._folder / "kitchen")}
        device = await connect(EdgeConfig(**place, stop="fixed", draft_length=4, **config))
        try:
            task = Task(ASKED, SamplingParams(temperature=0, max_tokens=40))
            chunks = [chunk async for chunk in device.answer(task)]
            stats = chunks[-1].stats
            return (
                "".join(chunk.text for chunk in chunks),
                device.drafter_name,
                stats.figures()["tokens_per_round"],
            )
        finally:
            await device.close()


@pytest.fixture
def homes(tmp_path, monkeypatch, capsys) -> Homes:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Homes(tmp_path, monkeypatch, capsys)


def test_published_pulled_drafted_with_and_rolled_back(homes, tmp_path):
    poor = adapted(tmp_path / "poor", content=forgetful(tmp_path / "forgetful.gguf").read_bytes())
    homes.publish(poor)
    # Starts in a moment, and waits for every draft: how good a draft is must not depend on how soon it comes.
    waits = ("--policy", "fcfs", "--draft-wait", "inf")
    with homes.serving("--engine", "llamacpp", *waits) as server:
        homes.address = server.wait_ready()
        plain, _, _ = homes.answer(drafter="none")
        assert json.loads(plain)["tool"] == "light.switch"
        assert "fetched poor, serial 1" in homes.pull("kitchen")
        assert "there is no adapted draft for this device's tenant" in homes.pull("garage", code=3)
        assert not store.adapted_path()  # at the garage's device
        assert homes.serial() == 1
        text, name, before = homes.answer(drafter="llamacpp", draft_model="adapted")
        assert text == plain and "draft-q8_0.gguf" in name
        homes.publish(adapted(tmp_path / "better"))
        assert homes.serial() == 2
        text, _, after = homes.answer(drafter="llamacpp", draft_model="adapted")
        assert text == plain and after > before + 0.5
        homes.rollback()
        assert homes.serial() == 3
        assert store.model_file("adapted", "*.gguf").read_bytes() == (poor / "draft-q8_0.gguf").read_bytes()
        assert "now better, serial 2" in homes.pull("kitchen", "--previous")


@pytest.mark.long
def test_what_adapt_made_reaches_the_device(homes, tmp_path):
    """A draft that forgot is published as it is, then adapted by the command, and published again."""
    poor = forgetful(tmp_path / "forgetful.gguf")
    homes.run("publish", str(poor), "--tenant", "kitchen", "--ungated", *homes._words)
    words = ("--draft", str(poor), "--target", "tiny", "--positions", "6000", "--out", str(tmp_path / "mine"))
    few = ["--heldout", "24", "--answer", "48", "--epochs", "6", "--rate", "0.003"]
    work = ("--work", str(tmp_path / "work"), *few)
    variables = {"OMP_WAIT_POLICY": "PASSIVE"}
    done = opensled("adapt", *words, *work, "--json", variables=variables, timeout=None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["gain"]["passes"]
    with homes.serving("--engine", "torch") as server:
        homes.address = server.wait_ready()
        homes.publish(tmp_path / "mine")
        plain, _, _ = homes.answer(drafter="none")
        told = homes.pull("kitchen")
        assert "fetched mine, serial 2" in told and "->" in told and "passed no gate" not in told
        text, _, after = homes.answer(drafter="llamacpp", draft_model="adapted")
        homes.rollback()
        homes.pull("kitchen")
        same, _, before = homes.answer(drafter="llamacpp", draft_model="adapted")
        assert text == same == plain and after > before
