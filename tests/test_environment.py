"""The environment of a process: proxies, a company's authorities, no home folder, standard streams, networks."""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO, TextIOWrapper
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from unittest.mock import Mock

import grpc
import pytest

from edge_client.draft_servers.address import draft_address
from edge_client.draft_servers.http_stream import fetch
from edge_client.link.link_errors import explain
from home.service.manager import account
from http_api.fields import parse_object
from http_api.listening import listen, listen_everywhere, tell_api
from opensled.cli import main as cli
from opensled.cli.colour import prepare_streams, require_utf8
from opensled.cli.config_file import read_file
from opensled.cli.main import main
from opensled.core.errors import OpenSledError, UsageError
from opensled.core.files import NO_HOME, home, read_kept, read_token, user_path, write_whole
from opensled.metrics.exposition import MetricsPort
from opensled.models.hub import read_pin
from opensled.models.hub_client import HubClient, _Proxies
from opensled.net.outward import VARIABLES, grpc_way, system_authorities, why_untrusted
from opensled.net.own_addresses import best_host, machine_addresses, network_addresses
from tests.certificates import AUTHORITY, HERE, issued, written
from tests.draft_stubs import OllamaHandler, narrator, stub_of
from tests.serving import linked, serving
from verify_server.access.security import Tls

NOWHERE = "http://127.0.0.1:9"
PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "grpc_proxy")


@pytest.mark.parametrize("name", PROXIES)
async def test_no_proxy_stands_before_a_server_of_the_own_network(monkeypatch, name):
    monkeypatch.setenv(name, NOWHERE)
    async with serving() as (_, address), linked(address) as link:
        assert (await link.describe()).vocab_size
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


@pytest.mark.parametrize("name", VARIABLES)
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
    for words, code in (("models path smollm2", 3), ("pull some/model", 5), ("pair list", 0)):
        assert cli.main(words.split()) == code
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(OSError, match="Permission denied; set HOME"):
        write_whole(home() / ".config/opensled/x", b"")


@pytest.mark.parametrize("place", ["/dev/null/x", __file__ + "/x", "/nonexistent/x"])
def test_a_record_below_no_folder_is_not_there(monkeypatch, place):
    monkeypatch.setenv("OPENSLED_CACHE_DIR", place)
    assert read_kept(Path(place)) is None and read_pin("a/b") is None


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", "| head -1"])
def test_closed_and_full_streams_are_no_traceback(closed):
    line = f'"{sys.executable}" -m opensled serve --help-all {closed}'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == (closed == ">/dev/full") and "Traceback" not in done.stderr
    assert "No space left" in done.stderr or closed != ">/dev/full"


@pytest.mark.parametrize(
    "command", [["-m", "opensled"], ["-c", "from opensled.cli.main import main; exit(main())"]]
)
@pytest.mark.parametrize(
    ("words", "said"), [(["run", "tïny"], "'tïny'"), (["models", "path", "grün/x"], "grün/x is")]
)
def test_arguments_variables_and_names_of_files_are_utf8_in_every_locale(command, words, said):
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "OPENSLED_ENGINE": "ü"}
    line, told = [sys.executable, *command], {**os.environ, **locale}
    done = subprocess.run([*line, *words], env=told, capture_output=True, encoding="utf-8", timeout=60)
    assert (
        said in done.stderr
        and "ü" in subprocess.run([*line, "serve"], env=told, capture_output=True).stderr.decode()
    )


def test_a_process_begins_anew_once_and_a_user_may_have_no_name(monkeypatch):
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    monkeypatch.setattr(os, "execv", Mock())
    monkeypatch.delenv("PYTHONUTF8", raising=False)
    for _ in range(2):
        require_utf8()
    os.execv.assert_called_once_with(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    assert account() == str(os.getuid())


def test_the_first_process_of_a_container_ends_by_sigterm_before_it_serves(monkeypatch):
    handled = {}
    monkeypatch.setattr(signal, "signal", handled.__setitem__)
    monkeypatch.setattr(sys, "argv", ["opensled", "--version"])
    assert main() == 0 and not handled
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert main() == 0
    with pytest.raises(SystemExit, match="143"):
        handled[signal.SIGTERM](signal.SIGTERM, None)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_bodies_and_input_may_be_as_windows_writes_them(monkeypatch, tmp_path, encoding):
    for name, text in (("opensled.toml", 'a = "ü"\r\n'), ("key", "one\r\n")):
        (tmp_path / name).write_bytes(text.encode(encoding))
        (tmp_path / name).chmod(0o600)
    assert read_file(tmp_path / "opensled.toml") == {"a": "ü"} == parse_object('{"a": "ü"}'.encode(encoding))
    assert read_token(str(tmp_path / "key")) == "one"
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, TextIOWrapper(BytesIO("hi".encode("utf-8-sig"))))
    prepare_streams()
    assert sys.stdin.read() == "hi"


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("kind", ["gone", "text", "folder", "DER"])
def test_a_variable_for_authorities_that_cannot_be_used_is_named(monkeypatch, tmp_path, name, kind):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("none")
    (tmp_path / "DER").write_bytes(ssl.PEM_cert_to_DER_cert(written(tmp_path).read_text()))
    for each in VARIABLES:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, str(tmp_path / kind))
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_code, error.verify_message = 20, "unable to get local issuer certificate"
    grpcs = explain(grpc.StatusCode.UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED", "far.example:1", True)
    own = explain(grpc.StatusCode.UNAVAILABLE, "CERTIFICATE_VERIFY_FAILED", "far:1", True, ca=True)
    assert str(tmp_path) not in str(own)
    for told in (why_untrusted(error, "next"), str(grpcs)):
        assert (f"{name} names {tmp_path / kind}, which cannot" in told) == (kind != "DER")
    assert (written(tmp_path).read_bytes().strip() in (system_authorities() or b"")) == (kind == "DER")


@pytest.mark.parametrize("hub", ["https://hub.example", "http://hub.example"])
@pytest.mark.parametrize(
    ("code", "said"), [(407, "http://NAME:PASSWORD@"), *((code, "ask who") for code in (403, 502, 503))]
)
def test_a_proxy_that_refuses_is_named_without_the_password(monkeypatch, hub, code, said):
    answers = type(
        "Proxy",
        (BaseHTTPRequestHandler,),
        {"do_GET": lambda self: self.send_error(code), "log_message": Mock()},
    )
    answers.do_CONNECT = answers.do_GET
    with ThreadingHTTPServer(("127.0.0.1", 0), answers) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{proxy.server_port}"
        for name in (*PROXIES, "no_proxy", "NO_PROXY", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", hub)
        monkeypatch.setenv(f"{hub.partition(':')[0]}_proxy", f"http://ann:secret@{place}")
        with pytest.raises(OpenSledError, match=f"the proxy {place}.*{said}") as told:
            HubClient().listing("a/b", "")
        proxy.shutdown()
    assert "secret" not in str(told.value) and "internet" not in str(told.value)


ROUTER = "192.168.1.20"
BEHIND = (
    "docker0", "br-3f2a90c1d7e4", "virbr0", "veth12ab", "tailscale0", "wg0", "tun0", "utun4", "zt5u4y", "vmnet8",
    "cscotun0", "gpd0", "tap0", "vpn0", "fctvpn1", "tunsnx", "outline-tap0", "ipsec0", "feth12", "TAP-Windows V9",
    "Cisco AnyConnect Virtual Miniport Adapter for Windows x64", "PANGP Virtual Ethernet Adapter Secure",
    "Fortinet SSL VPN Virtual Ethernet Adapter", "Juniper Networks Virtual Adapter", "LogMeIn Hamachi Virtual Adapter",
    "Check Point Virtual Network Adapter For Endpoint VPN Client", "Mullvad Tunnel", "ham0", "Radmin VPN",
    "cni0", "vboxnet0", "lxcbr0", "podman1", "hassio", "vEthernet (WSL)", "bridge100", "incusbr0", "rmnet_data0",
    "v4-rmnet_data0", "ccmni1", "waydroid0", "col0", "l4tbr0", "surfshark_wg", "vxlan.calico", "fwbr1i0", "pvpnksint0",
)  # fmt: skip
NETWORKS = (
    "enx00e04c680001", "wlp3s0", "br-lan", "br0", "en0", "vmbr0", "bond0", "Ethernet 2", "WLAN",
    "Microsoft Hyper-V Network Adapter", "Red Hat VirtIO Ethernet Adapter", "vmxnet3 Ethernet Adapter",
)  # fmt: skip


def adapter(name, *ips):
    return SimpleNamespace(name=name, nice_name=name, ips=[SimpleNamespace(ip=ip) for ip in ips])


@pytest.mark.parametrize("name", BEHIND)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_address_of_the_network_comes_before_those_of_bridges_and_tunnels(monkeypatch, name, network):
    lan = adapter(network, ("2001:db8::7", 0, 0), ROUTER, ("fe80::1", 0, 7))
    others = (adapter("lo", "127.0.0.1"), adapter(name, "172.17.0.1"), adapter("x0", "100.64.0.9"))
    for adapters in ((*others, lan), (lan, *others)):
        monkeypatch.setitem(sys.modules, "ifaddr", SimpleNamespace(get_adapters=Mock(return_value=adapters)))
        # All goes through a tunnel
        monkeypatch.setattr("opensled.net.own_addresses._routed", lambda: "172.17.0.1")
        assert best_host("0.0.0.0:1") == best_host("[::]:1") == ROUTER
        assert network_addresses() == [ROUTER, "2001:db8::7"] and machine_addresses()[-1] == "127.0.0.1"
    told = []
    monkeypatch.setattr("http_api.listening.tell", told.append)
    tell_api("0.0.0.0:8411", False, "tiny")
    assert told[1] == f"page for a browser: http://{ROUTER}:8411/"


@pytest.mark.parametrize(
    ("adapters", "first"),
    [
        ([("wg0", "10.9.0.2"), ("eth0", "169.254.17.3")], ["169.254.17.3"]), ([("wg0", "10.9.0.2")], ["10.9.0.2"]),
        ([("eth0", "169.254.17.3"), ("wlan0", ROUTER)], [ROUTER]), ([("x0", "100.64.0.9")], ["100.64.0.9"]),
        ([("eth0", "10.0.0.7"), ("wlan0", ROUTER)], ["10.0.0.7", ROUTER]), ([], ["127.0.0.1"]),
        ([("corp", "10.9.0.2"), ("nic", ROUTER)], [ROUTER]), ([("corp", "10.9.0.2"), ("br7", ROUTER)], [ROUTER]),
        ([("nic", ROUTER), ("ap0", "10.42.0.1"), ("tun0", "10.9.0.2")], [ROUTER, "10.42.0.1"]),
    ],
)  # fmt: skip
def test_addresses_rank_by_what_is_behind_their_adapters(monkeypatch, tmp_path, adapters, first):
    for folder in ("nic/device", "ap0/device", "br7/lower_nic/device", "corp"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr("opensled.net.own_addresses.NETS", tmp_path)
    found = [adapter("lo", "127.0.0.1"), *(adapter(name, ip) for name, ip in adapters)]
    monkeypatch.setitem(sys.modules, "ifaddr", SimpleNamespace(get_adapters=Mock(return_value=found)))
    assert network_addresses() == first


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_what_listens_at_every_address_takes_both_kinds(monkeypatch):
    metrics = MetricsPort("[::]:0", [])
    with listen("[::]:0") as listener:
        for port in (listener.getsockname()[1], metrics.address.rpartition(":")[2]):
            for host in ("127.0.0.1", "::1"):
                socket.create_connection((host, port), timeout=10).close()
    metrics.close()
    both = [(family, 1, 6, "", ("", 0)) for family in (socket.AF_INET6, socket.AF_INET)]
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=lambda *_, **__: both))
    create, own = socket.create_server, {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
    monkeypatch.setattr(
        socket, "create_server", lambda place, family, **_: create((own[family], place[1]), family=family)
    )
    listeners = listen_everywhere("localhost:0")
    assert [each.getsockname()[0] for each in listeners] == ["127.0.0.1", "::1"]
    assert len({each.getsockname()[1] for each in listeners}) == 1
    for each in listeners:
        with socket.socket(each.family) as client:
            client.connect(each.getsockname()[:2])
        each.close()
