"""The environment of a process: proxies, a company's authorities, no home folder, standard streams, networks."""

import asyncio
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import grpc
import pytest

from edge_client.draft_servers.address import draft_address
from edge_client.draft_servers.http_stream import fetch
from edge_client.link.link_errors import explain
from http_api.listening import listen, tell_api
from opensled.cli import main as cli
from opensled.core.errors import OpenSledError, UsageError
from opensled.core.files import NO_HOME, home, user_path, write_whole
from opensled.metrics.exposition import MetricsPort
from opensled.models.hub_client import _Proxies
from opensled.net.outward import grpc_way
from opensled.net.own_addresses import best_host, machine_addresses, network_addresses
from tests.certificates import AUTHORITY, HERE, issued, written
from tests.draft_stubs import OllamaHandler, narrator, stub_of
from tests.serving import linked, serving
from verify_server.access.security import Tls

NOWHERE = "http://127.0.0.1:9"
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "grpc_proxy")
BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@pytest.mark.parametrize("name", PROXIES)
def test_no_proxy_stands_before_a_server_of_the_own_network(monkeypatch, name):
    monkeypatch.setenv(name, NOWHERE)

    async def scenario():
        async with serving() as (_, address), linked(address) as link:
            assert (await link.describe()).vocab_size

    asyncio.run(scenario())
    assert dict(grpc_way("far.example:1"))["grpc.enable_http_proxy"] == (name == "grpc_proxy")
    told = str(explain(grpc.StatusCode.UNAVAILABLE, "", "far.example:1", False))
    assert ("grpc_proxy" in told and "no_proxy" in told) == (name == "grpc_proxy")


HUB = "https://hub.example"


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({"https_proxy": "http://ann:pw@proxy:1"}, HUB, "proxy:1"), ({"ALL_PROXY": NOWHERE}, HUB, NOWHERE),
        ({"all_proxy": "socks5://proxy:1"}, HUB, ""), ({"https_proxy": NOWHERE, "no_proxy": ".example"}, HUB, ""),
        ({"http_proxy": NOWHERE}, "http://192.168.1.9", ""), ({"http_proxy": NOWHERE}, "http://nas:80", ""),
    ],
)  # fmt: skip
def test_the_hub_is_asked_through_the_proxy_and_a_mirror_nearby_is_not(monkeypatch, variables, url, proxy):
    for name in (*PROXIES, "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _Proxies().before(url) == proxy


@pytest.mark.parametrize("name", [*BUNDLES, "SSL_CERT_DIR"])
def test_the_authorities_that_a_company_names_are_trusted(monkeypatch, tmp_path, name):
    """By gRPC, and by what speaks HTTP."""
    identity = issued(AUTHORITY, HERE)
    (tmp_path / "own.pem").write_bytes(identity.cert + identity.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem")

    async def described():
        async with serving(tls=Tls(identity)) as (_, address), linked(address, tls=True) as link:
            return (await link.describe()).vocab_size

    with stub_of(OllamaHandler, writer=narrator("-"), tls=context) as server:
        with pytest.raises(OpenSledError, match=r"not accepted .*draft-ca.*SSL_CERT_FILE"):
            fetch(draft_address(server.url), "/api/version")
        with pytest.raises(OpenSledError, match="SSL_CERT_FILE"):
            asyncio.run(described())
        path = written(tmp_path)
        if name == "SSL_CERT_DIR":
            words = ["openssl", "x509", "-hash", "-noout", "-in", path]
            path.rename(tmp_path / f"{subprocess.check_output(words, text=True).strip()}.0")
        monkeypatch.setenv(name, str(tmp_path if name == "SSL_CERT_DIR" else path))
        assert fetch(draft_address(server.url), "/api/version")
        assert asyncio.run(described())


@pytest.mark.parametrize("error", [RuntimeError("Could not determine home directory."), PermissionError()])
def test_without_a_home_commands_go_on_and_what_needs_one_names_it(monkeypatch, error):
    monkeypatch.setattr(Path, "home", Mock(side_effect=error))
    for name in ("OPENSLED_NO_CONFIG", "OPENSLED_CACHE_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    assert home() == NO_HOME and user_path("~/x") == NO_HOME / "x" and user_path("x") == Path("x")
    with pytest.raises(UsageError, match="no user here"):
        user_path("~nobody-of-this-name/x")
    for words, code in (
        (["models", "path", "smollm2"], 3),
        (["pull", "some/model"], 5),
        (["pair", "list"], 0),
    ):
        assert cli.main(words) == code
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(OSError, match="Permission denied; set HOME"):
        write_whole(home() / ".config/opensled/x", b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "| head -1"])
def test_closed_and_full_streams_are_no_traceback(closed):
    line = f'"{sys.executable}" -m opensled serve --help-all {closed}'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == (closed == ">/dev/full") and "Traceback" not in done.stderr
    assert "No space left" in done.stderr or closed != ">/dev/full"


ROUTER = "192.168.1.20"
BEHIND = (
    "docker0", "br-3f2a90c1d7e4", "virbr0", "veth12ab", "tailscale0", "wg0", "tun0", "utun4", "zt5u4y", "vmnet8",
    "cni0", "vboxnet0", "lxcbr0", "podman1", "hassio", "vEthernet (WSL)", "bridge100", "incusbr0",
)  # fmt: skip
NETWORKS = ("enx00e04c680001", "wlp3s0", "br-lan", "br0", "en0", "vmbr0", "bond0", "Ethernet 2")


def adapter(name, *ips):
    return SimpleNamespace(name=name, nice_name=name, ips=[SimpleNamespace(ip=ip) for ip in ips])


@pytest.mark.parametrize("name", BEHIND)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_address_of_the_network_comes_before_those_of_bridges_and_tunnels(monkeypatch, name, network):
    lan = adapter(network, ("2001:db8::7", 0, 0), ROUTER, ("fe80::1", 0, 7))
    others = (adapter("lo", "127.0.0.1"), adapter(name, "172.17.0.1"), adapter("x0", "100.64.0.9"))
    for adapters in ((*others, lan), (lan, *others)):
        monkeypatch.setitem(sys.modules, "ifaddr", SimpleNamespace(get_adapters=Mock(return_value=adapters)))
        assert best_host("0.0.0.0:1") == best_host("[::]:1") == ROUTER
        assert network_addresses() == [ROUTER, "2001:db8::7"] and machine_addresses()[-1] == "127.0.0.1"
    told = []
    monkeypatch.setattr("http_api.listening.tell", told.append)
    tell_api("0.0.0.0:8411", False, "tiny")
    assert told[1] == f"page for a browser: http://{ROUTER}:8411/"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_what_listens_at_every_address_takes_both_kinds():
    metrics = MetricsPort("[::]:0", [])
    with listen("[::]:0") as listener:
        for port in (listener.getsockname()[1], metrics.address.rpartition(":")[2]):
            for host in ("127.0.0.1", "::1"):
                socket.create_connection((host, port), timeout=10).close()
    metrics.close()
