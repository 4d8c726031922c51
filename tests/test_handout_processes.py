"""From an adapted draft to devices that draft with it, over a real server: publish, pull, the next one, rollback.

With -m long, opensled adapt makes the draft.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.device.config import EdgeConfig
from edge_client.device.device import connect
from lab.testbed.processes import Process
from opensled.cli import main as cli
from opensled.core.answer import Task
from opensled.core.files import write_whole
from opensled.core.messages import ChatMessage, SamplingParams
from opensled.models import store
from opensled.models.gguf_file import read_head
from tests.handed_out import adapted
from tests.tiny_drafts import TINY_DRAFT

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

    def answer(self, **config: object):
        """Of the kitchen's device: its text, the name of its drafter, and tokens a round."""

        async def main():
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

        return asyncio.run(main())


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
    work = (
        "--work",
        str(tmp_path / "work"),
        "--heldout",
        "24",
        "--answer",
        "48",
        "--epochs",
        "6",
        "--rate",
        "0.003",
    )
    done = subprocess.run(
        [sys.executable, "-m", "opensled", "adapt", *words, *work, "--json"],
        capture_output=True, text=True, env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )  # fmt: skip
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
