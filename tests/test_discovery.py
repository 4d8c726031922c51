"""Announcements on the local network: hostile names and records, and the real thing over multicast."""

import asyncio
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from edge_client.link.link_config import LinkConfig
from edge_client.link.located import locate_server
from home import discovery
from home.discovery import MAX_ADDRESSES, MAX_NAME, PAIRING, SERVING, FoundServer, check_record
from opensled.cli import paired
from opensled.core.errors import NotFound, UsageError
from opensled.net.address import MDNS
from opensled.net.own_addresses import machine_addresses
from tests.certificates import AUTHORITY, HERE, STRANGER, written

NEAR = "192.168.1.7"


def record(name="hub", addresses=(NEAR,), port=7411):
    return check_record(SERVING, f"{name}.{SERVING}", addresses, port)


def test_a_good_record_is_an_address():
    assert record() == FoundServer("hub", (NEAR,), 7411)
    assert record(addresses=("fd00::1", NEAR)).addresses == (NEAR, "fd00::1")
    assert record(addresses=("169.254.17.3",)).addresses == ("169.254.17.3",)  # at the other end of a cable


@pytest.mark.parametrize(
    "name",
    [
        "\x1b]0;owned\x07",
        "a\nerror: run: rm -rf",
        "\u202egnp.exe",
        "x" * 300,
        "<script>alert(1)</script>",
        "\x00\x9b31m",
    ],
)
def test_a_name_neither_controls_the_terminal_nor_floods_it(name):
    shown = record(name).name
    assert shown.isprintable() and len(shown) <= MAX_NAME * 6


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "127.0.0.1", "::1", "0.0.0.0", "255.255.255.255", "224.0.0.251", "169.254.169.254", "fe80::1%eth0",
     "2001:4860:4860::8888", "hub", "", "192.168.1.7/24"],
)  # fmt: skip
def test_no_record_leads_out_of_the_network_or_to_this_machine(address):
    assert record(addresses=(address,)) is None
    assert record(addresses=(address, NEAR)).addresses == (NEAR,)


@pytest.mark.parametrize("port", [0, -1, 65536, None, "7411"])
def test_ports_that_are_none(port):
    assert record(port=port) is None


def test_records_without_a_name_or_with_very_many_addresses():
    assert record("") is None and record(addresses=()) is None
    assert len(record(addresses=[f"10.0.0.{number}" for number in range(200)]).addresses) == MAX_ADDRESSES


@pytest.fixture
def announcing(monkeypatch):
    """Lets a test say what is announced."""

    def set_found(*found):
        async def listen_for(kind, seconds=0.0):
            return list(found)

        monkeypatch.setattr(discovery, "listen_for", listen_for)

    return set_found


@pytest.fixture
def reached(monkeypatch):
    """Addresses that accept connections."""
    accepting = {NEAR, "192.168.1.8"}

    async def accepts(address, port, tls, name):
        return address in accepting

    monkeypatch.setattr(discovery, "_accepts", accepts)
    return accepting


def test_one_server_is_found_at_an_address_that_answers(announcing, reached):
    announcing(FoundServer("hub", ("172.17.0.1", NEAR), 7411), FoundServer("liar", ("10.9.9.9",), 1))
    assert discovery.find(SERVING) == f"{NEAR}:7411"


def test_several_servers_are_for_the_user_to_choose_from(announcing, reached):
    announcing(FoundServer("hub", (NEAR,), 7411), FoundServer("\\x1bpc", ("192.168.1.8",), 7411))
    with pytest.raises(
        UsageError, match=r"several are announced.*192\.168\.1\.8:7411, hub at 192\.168\.1\.7:7411; name"
    ):
        discovery.find(SERVING)


def test_none_says_what_to_start(announcing, reached):
    announcing()
    with pytest.raises(NotFound, match="start opensled serve --announce"):
        discovery.find(SERVING)
    announcing(FoundServer("hub", ("10.9.9.9",), 7411))
    with pytest.raises(NotFound, match=r"\(hub cannot be reached\); start opensled pair --announce"):
        discovery.find(PAIRING)


@asynccontextmanager
async def liars(*contexts):
    """Servers that are not the true one, one for each TLS context (None = no TLS); yields ports and what they heard."""
    heard, servers = [], []

    async def listen(reader, writer):
        heard.append(await reader.read(1000))
        writer.close()

    for context in contexts:
        servers.append(await asyncio.start_server(listen, HERE, 0, ssl=context))
    try:
        yield [server.sockets[0].getsockname()[1] for server in servers], heard
    finally:
        for server in servers:
            server.close()


def shows(authority, *names):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


async def test_a_device_finds_its_own_server_among_liars(announcing, tmp_path, monkeypatch):
    """Of another authority, of its own one for another name, without TLS: none hears a word, none is in the way."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    paired.keep(f"{HERE}:7411", written(tmp_path).read_text(), "secret")
    config = LinkConfig(**{**paired.values({}), "server": MDNS})
    stranger, other, true = shows(STRANGER, HERE), shows(AUTHORITY, "other.example"), shows(AUTHORITY, HERE)
    async with liars(stranger, other, None, true) as (ports, heard):
        lies = [FoundServer(f"liar-{port}", (HERE,), port) for port in ports[:3]]
        announcing(*lies, FoundServer("hub", (HERE,), ports[3]))
        assert (await asyncio.to_thread(locate_server, config)).server == f"{HERE}:{ports[3]}"
        announcing(*lies)
        with pytest.raises(NotFound, match="cannot prove to be this device's server"):
            await asyncio.to_thread(locate_server, config)
    assert not any(b"secret" in said for said in heard)


def test_only_what_others_can_reach_is_announced():
    for listen in ("127.0.0.1:7411", "localhost:7411", "[::1]:7411"):
        with pytest.raises(UsageError, match="only this machine can reach"):
            discovery.require_reachable(listen)
    discovery.require_reachable("0.0.0.0:7411")


def test_the_addresses_of_this_machine():
    found = machine_addresses()
    assert "127.0.0.1" in found and not any("%" in address for address in found)
    assert discovery.best_host("192.0.2.9:1") == "192.0.2.9"
    assert discovery.best_host("0.0.0.0:1") == found[0]


def has_multicast():
    """Whether this machine has a network on which it can be found."""
    return not machine_addresses()[0].startswith("127.")


@pytest.mark.skipif(not has_multicast(), reason="this machine has no network besides loopback")
async def test_a_server_is_found_by_its_announcement_and_two_are_told_apart(monkeypatch):
    listen_for = discovery.listen_for
    # A record that was multicast is not multicast again within a second (RFC 6762, section 6)
    monkeypatch.setattr(discovery, "listen_for", lambda kind: listen_for(kind, 1.5))
    async with AsyncExitStack() as stack:
        with socket.create_server(("0.0.0.0", 0)) as listener:
            port = listener.getsockname()[1]
            await stack.enter_async_context(discovery.announce(SERVING, "0.0.0.0:0", port))
            place = await asyncio.to_thread(discovery.find, SERVING)
            host = place.rpartition(":")[0]
            assert place.endswith(f":{port}") and host in machine_addresses()
            await stack.enter_async_context(discovery.announce(SERVING, "0.0.0.0:0", port))
            with pytest.raises(UsageError, match="several are announced"):
                await asyncio.to_thread(discovery.find, SERVING)
