"""The front of deploy/front: valid configurations, honest devices through it, and what it stops. Needs HAProxy."""

import asyncio
import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lab.benchmarks.attacks import floods
from lab.benchmarks.attacks.connection import Peer
from lab.benchmarks.attacks.front import CONFIGURATION, fronted, haproxy, write_certificate
from opensled.core.errors import NotFound
from tests.serving import TENANTS, again, finish, linked, serving

ROOT = Path(__file__).parents[1]
FRONT = ROOT / "deploy/front"
PATH = f"{os.environ['PATH']}:/usr/sbin"
needs_haproxy = pytest.mark.skipif(
    shutil.which("haproxy", path=PATH) is None, reason="HAProxy is not installed"
)
needs_nft = pytest.mark.skipif(
    shutil.which("nft", path=PATH) is None or os.geteuid() != 0,
    reason="nft is not installed, or not for this user",
)
STREAMS_10_S = int(re.search(r"http_req_rate gt (\d+)", CONFIGURATION.read_text())[1])


@needs_haproxy
@pytest.mark.parametrize("name", ["haproxy.cfg", "passthrough.cfg"])
def test_haproxy_takes_the_configuration(name, tmp_path):
    names = {
        "OPENSLED_FRONT": "127.0.0.1:7411",
        "OPENSLED_FRONT_CERT": str(write_certificate(tmp_path)),
        "OPENSLED_SERVER": "127.0.0.1:7410",
    }
    command = [haproxy(), "-c", "-f", str(FRONT / name)]
    found = subprocess.run(command, env={**os.environ, **names}, capture_output=True, text=True)
    assert found.returncode == 0 and "ALERT" not in found.stderr + found.stdout, found.stderr


@needs_nft
def test_nft_takes_the_rules():
    command = ["nft", "-c", "-f", str(FRONT / "opensled.nft")]
    found = subprocess.run(command, env={**os.environ, "PATH": PATH}, capture_output=True, text=True)
    if "Operation not permitted" in found.stderr:
        pytest.skip("this machine has no rules to check them against")
    assert found.returncode == 0, found.stderr


def test_a_machine_without_haproxy_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(NotFound, match="apt-get install haproxy"):
        haproxy()


@needs_haproxy
async def test_devices_read_through_the_front_and_a_flood_of_wrong_tokens_ends_at_it():
    """Streams of one connection share one connection to the server; the flood's source is another than the device's."""
    async with serving(tenants=TENANTS) as (manager, address):
        with fronted(Peer(address, "another token"), 0) as (peer, _):
            async with linked(peer.address, token=peer.token, tls=True, tls_ca=peer.tls_ca) as link:
                for _ in range(2):
                    await asyncio.gather(*(finish(link) for _ in range(3)))
                tally = await asyncio.to_thread(_flood, replace(peer, source="127.0.0.2"))
                assert len((await finish(link))[1]) == 20
        # What is on its way when the front cuts the connection still reaches the server.
        assert manager.stats.refused["unauthorized"] <= STREAMS_10_S + floods.UNANSWERED
        assert tally["lost"] >= 3


def _flood(peer: Peer) -> Counter[str]:
    """Until the front has turned it away several times."""
    tally: Counter[str] = Counter()
    again(floods.wrong_tokens, peer, lambda: tally["lost"] < 3, tally)
    return tally
