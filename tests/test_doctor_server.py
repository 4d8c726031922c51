"""`opensled doctor` and the way to the server: every step that can fail, each made to fail once."""

import asyncio
import socket
import threading
import time
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone

import grpc
import pytest

from edge_client.device.config import DoctorConfig
from edge_client.doctor import network
from edge_client.doctor import server_checks as server
from edge_client.doctor.server_checks import ServerReport, check_description, check_round_trip, check_server
from opensled.core.messages import Limits
from opensled.wire import codec
from tests.certificates import AUTHORITY, HERE, STRANGER, issued, written
from tests.serving import serving
from tests.tiny_drafts import tiny_info
from verify_server.access.security import Tenants, Tls

NOW = datetime.now(timezone.utc)
STEPS = ["name", "connection", "protocol", "token", "server"]


async def examined(address, **config):
    report = ServerReport()
    await check_server(DoctorConfig(server=address, **config), report)
    return report


def last(report):
    """The step that failed, and that nothing before it did."""
    assert [item.status for item in report.findings[:-1]] == ["ok"] * (len(report.findings) - 1)
    return report.findings[-1]


@pytest.fixture
def ca(tmp_path):
    return str(written(tmp_path))


@asynccontextmanager
async def answering(greeting=None):
    """A server that is none of ours: sends `greeting` and ends; with None it stays silent."""

    async def serve(reader, writer):
        if greeting is not None:
            writer.write(greeting)
            writer.close()
        else:
            await reader.read()

    listener = await asyncio.start_server(serve, HERE, 0)
    async with listener:
        yield f"{HERE}:{listener.sockets[0].getsockname()[1]}"


# -- all is well -----------------------------------------------------------------------------------------


async def test_a_server_that_is_well(ca, tmp_path):
    (tmp_path / "token").write_text("secret-1\n")
    (tmp_path / "token").chmod(0o600)
    async with serving() as (_, address):
        plain = await examined(address)
    async with serving(Tenants((("secret-1", "alice"),)), tls=Tls(issued(AUTHORITY, HERE))) as (
        _,
        address,
    ):
        secure = await examined(address, tls_ca=ca, token_file=str(tmp_path / "token"))
    assert [item.check for item in plain.findings] == [*STEPS, "chat", "round trip"]
    assert [item.check for item in secure.findings] == [
        *("name", "connection", "certificate"),
        *("protocol", "token", "server", "chat", "round trip"),
    ]
    for report in (plain, secure):
        assert {item.check for item in report.findings if item.status != "ok"} == {"chat"}
        assert report.info.model_id == "fake" and report.decode_s > 0


# -- name and connection ---------------------------------------------------------------------------------


def test_a_name_without_an_address(monkeypatch):
    def unknown(*arguments, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    finding = last(asyncio.run(examined("hub.invalid:7411")))
    assert (finding.check, finding.exit_code) == ("name", 5) and "not known" in finding.detail


@pytest.mark.timed
def test_a_resolver_that_hangs(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: threading.Event().wait())
    monkeypatch.setattr(network, "SECONDS", 0.05)
    started = time.monotonic()
    finding = last(asyncio.run(examined("hub.invalid:7411")))
    assert "no name server answers" in finding.detail and time.monotonic() - started < 5


def test_nobody_listens():
    finding = last(asyncio.run(examined(f"{HERE}:1")))
    assert (finding.check, finding.exit_code) == ("connection", 5)
    assert "connection refused" in finding.detail and f"opensled serve --listen {HERE}:1" in finding.fix


def test_packets_that_are_dropped(monkeypatch):
    async def drop(*arguments, **options):
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", drop)
    monkeypatch.setattr(network, "SECONDS", 0.05)
    finding = last(asyncio.run(examined(f"{HERE}:9")))
    assert "no answer within" in finding.detail and "firewall" in finding.fix


# -- what answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a web server"),
        (b"SSH-2.0-OpenSSH_9.7\r\n", "not gRPC"),
        (b"\0" * 100_000, "not gRPC"),
        (b"", "ends the connection"),
        (b"\x15\x03\x01\0\x02\x02\x46", "refuses our TLS"),
        (None, "says nothing"),
    ],
)
def test_something_else_answers(greeting, said, monkeypatch):
    monkeypatch.setattr(network, "SECONDS", 0.5)

    async def scenario():
        async with answering(greeting) as address:
            return await examined(address)

    finding = last(asyncio.run(scenario()))
    assert (finding.check, finding.exit_code) == ("protocol", 5) and said in finding.detail


def test_http2_that_is_no_server_of_ours(monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 0.3)

    async def scenario():
        async with answering(b"\0\0\0\x04\0\0\0\0\0") as address:
            return await examined(address)

    finding = last(asyncio.run(scenario()))
    assert (finding.check, finding.exit_code) == ("server", 5)


@pytest.mark.parametrize("reply", [b"\xff\xff\xff garbage", b"", b"\x0a\x06\x1b]0;hi"])
def test_a_server_that_describes_garbage(reply):
    async def say(request, context):
        return reply

    async def scenario():
        strange = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(say)
        strange.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(codec.SERVICE_NAME, {"Describe": handler})]
        )
        port = strange.add_insecure_port(f"{HERE}:0")
        await strange.start()
        try:
            return await examined(f"{HERE}:{port}")
        finally:
            await strange.stop(None)

    findings = [item for item in asyncio.run(scenario()).findings if item.status == "fail"]
    assert len(findings) == 1 and findings[0].check == "server" and "\x1b" not in findings[0].detail


# -- TLS -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "config", "check", "said"),
    [
        (issued(AUTHORITY, HERE), {}, "protocol", "the server wants TLS"),
        (issued(AUTHORITY, HERE), {"tls": True}, "certificate", "not signed by the certificate authorities"),
        (issued(STRANGER, HERE), {"tls_ca": True}, "certificate", "not signed by the certificates in"),
        (issued(AUTHORITY, "other.example"), {"tls_ca": True}, "certificate", "not for '127.0.0.1'"),
        (
            issued(AUTHORITY, HERE, not_before=NOW - timedelta(100), not_after=NOW - timedelta(40)),
            {"tls_ca": True},
            "certificate",
            "expired by this device's clock, ",
        ),
        (
            issued(AUTHORITY, HERE, not_before=NOW + timedelta(40), not_after=NOW + timedelta(90)),
            {"tls_ca": True},
            "certificate",
            "not yet valid by this device's clock, ",
        ),
        (None, {"tls_ca": True}, "certificate", "speaks without TLS"),
    ],
    ids=["tls-wanted", "unknown-authority", "other-authority", "name", "expired", "not-yet", "plain"],
)
def test_certificates_that_do_not_do(own, config, check, said, ca):
    if "tls_ca" in config:
        config = {"tls_ca": ca}

    async def scenario():
        async with serving(tls=own and Tls(own)) as (_, address):
            return await examined(address, **config)

    finding = last(asyncio.run(scenario()))
    assert (finding.check, finding.status, finding.exit_code) == (check, "fail", 5), finding
    assert said in finding.detail and finding.fix


def test_a_certificate_that_ends_soon(ca):
    own = issued(AUTHORITY, HERE, not_before=NOW - timedelta(100), not_after=NOW + timedelta(9, hours=1))

    async def scenario():
        async with serving(tls=Tls(own)) as (_, address):
            return await examined(address, tls_ca=ca)

    found = {item.check: item for item in asyncio.run(scenario()).findings}
    assert found["certificate"].status == "warn"
    assert f"valid until {NOW + timedelta(9, hours=1):%Y-%m-%d} (9 days)" in found["certificate"].detail
    assert found["server"].status == "ok"


@pytest.mark.parametrize("own", [None, issued(STRANGER, "device.example")], ids=["none", "foreign"])
def test_a_server_that_asks_for_certificates(own, ca, tmp_path):
    config = {"tls_ca": ca}
    if own:
        for name, content in (("cert", own.cert), ("key", own.key)):
            (tmp_path / name).write_bytes(content)
            (tmp_path / name).chmod(0o600)
            config[f"client_{name}"] = str(tmp_path / name)

    async def scenario():
        async with serving(tls=Tls(issued(AUTHORITY, HERE), AUTHORITY.cert_pem.bytes())) as (_, address):
            return await examined(address, **config)

    finding = last(asyncio.run(scenario()))
    assert (finding.check, finding.exit_code) == ("own certificate", 4)
    assert ("not to accept" if own else "--client-cert FILE") in finding.detail + finding.fix


def test_files_that_hold_no_certificate(tmp_path):
    (tmp_path / "ca.pem").write_text("nothing")

    async def scenario():
        async with serving(tls=Tls(issued(AUTHORITY, HERE))) as (_, address):
            return await examined(address, tls_ca=str(tmp_path / "ca.pem"))

    assert last(asyncio.run(scenario())).check == "certificate"


# -- token, description, distance ------------------------------------------------------------------------


@pytest.mark.parametrize(("token", "fix"), [("", "--token-file FILE"), ("wrong", "--tokens file")])
def test_a_token_that_is_not_accepted(token, fix, tmp_path):
    path = tmp_path / "token"
    path.write_text(token)
    path.chmod(0o600)

    async def scenario():
        async with serving(Tenants((("secret-1", "alice"),))) as (_, address):
            return await examined(address, token_file=str(path) if token else "")

    finding = last(asyncio.run(scenario()))
    assert (finding.check, finding.exit_code) == ("token", 4) and fix in finding.fix


def test_a_token_in_clear_text():
    assert server._report_token(True, False, "192.0.2.1:7411").status == "warn"
    assert server._report_token(True, True, "192.0.2.1:7411").status == "ok"
    assert server._report_token(True, False, "127.0.0.1:7411").status == "ok"


@pytest.mark.parametrize(
    ("change", "check", "status", "said"),
    [
        ({"version": "9.9.9"}, "version", "warn", "9.9.9"),
        ({"version": "\x1b[2J"}, "version", "warn", "\\x1b[2J"),
        ({"rules": ()}, "rule", "fail", "'match'"),
        ({"has_chat_template": False}, "chat", "warn", "no chat template"),
        ({"vocab_size": 0}, "server", "fail", "no usable model"),
        ({"limits": Limits(0, 0)}, "server", "fail", "no usable model"),
        ({"model_id": "x" * 9999}, "server", "ok", "xxx, numerics exact"),
    ],
)
def test_what_a_server_says_of_itself(change, check, status, said):
    found = {item.check: item for item in check_description(tiny_info(**change), "match")}
    assert found[check].status == status and said in found[check].detail


def test_round_trips():
    finding = check_round_trip([0.010, 0.030, 0.010])
    assert (finding.status, finding.detail) == ("ok", "10.0 ms median of 3, jitter 20.0 ms")
    assert check_round_trip([0.4]).status == "warn"
