"""`opensled doctor` and the server: what it describes, its certificate's end, and every step that can fail."""

import asyncio
from datetime import datetime, timedelta, timezone

import grpc
import pytest

from edge_client.device.config import DoctorConfig
from edge_client.doctor import server_checks as server
from edge_client.doctor.server_checks import check_description, check_round_trip, check_server
from opensled.core.messages import Limits
from tests.certificates import AUTHORITY, HERE, STRANGER, issued, written
from tests.serving import handling, serving
from tests.tiny_drafts import tiny_info
from verify_server.access.security import Tenants, Tls

NOW = datetime.now(timezone.utc)


async def examined(address, **config):
    """The findings, and the description of a server that can be used."""
    findings = []
    return findings, await check_server(DoctorConfig(server=address, **config), findings)


def last(findings):
    """The step that failed, and that nothing before it did."""
    assert [item.status for item in findings[:-1]] == ["ok"] * (len(findings) - 1)
    return findings[-1]


@pytest.fixture
def ca(tmp_path):
    return str(written(tmp_path))


# -- all is well -----------------------------------------------------------------------------------------


async def test_a_server_that_is_well(ca, tmp_path):
    (tmp_path / "token").write_text("secret-1\n")
    (tmp_path / "token").chmod(0o600)
    async with serving() as (_, address):
        plain = await examined(address)
    async with serving(Tenants((("secret-1", "alice"),)), tls=Tls(issued(AUTHORITY, HERE))) as (_, address):
        secure = await examined(address, tls_ca=ca, token_file=str(tmp_path / "token"))
    assert [item.check for item in plain[0]] == ["token", "server", "chat", "round trip"]
    assert [item.check for item in secure[0]] == ["certificate", "token", "server", "chat", "round trip"]
    for findings, info in (plain, secure):
        assert {item.check for item in findings if item.status != "ok"} == {"chat"}
        assert info.model_id == "fake"


# -- what answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "said", "fix"),
    [
        (f"{HERE}:1", "nothing listens there", f"start one: opensled serve --listen {HERE}:1"),
        ("no-such-host.invalid:7411", "no machine has this name", "check its spelling"),
    ],
)
def test_a_server_that_cannot_be_reached_by_the_clients_own_error(address, said, fix):
    findings, info = asyncio.run(examined(address))
    finding = last(findings)
    assert (finding.check, finding.exit_code, info) == ("connection", 5, None)
    assert said in finding.detail and finding.fix.startswith(fix)


async def test_a_server_that_says_nothing(monkeypatch):
    monkeypatch.setattr(server, "SECONDS", 0.3)

    async def stay_silent(reader, writer):
        await reader.read()
        writer.close()

    async with await asyncio.start_server(stay_silent, HERE, 0) as listener:
        finding = last((await examined(f"{HERE}:{listener.sockets[0].getsockname()[1]}"))[0])
    assert (finding.check, finding.exit_code) == ("connection", 5) and finding.fix


@pytest.mark.parametrize("reply", [b"\xff\xff\xff garbage", b"", b"\x0a\x06\x1b]0;hi"])
async def test_a_server_that_describes_garbage(reply):
    async def say(request, context):
        return reply

    async with handling(say, Describe=grpc.unary_unary_rpc_method_handler(say)) as address:
        found, _ = await examined(address)
    findings = [item for item in found if item.status == "fail"]
    assert len(findings) == 1 and findings[0].check == "server" and "\x1b" not in findings[0].detail


# -- TLS -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "config", "said"),
    [
        (issued(AUTHORITY, HERE), {}, "if it speaks TLS, pair this device"),
        (issued(STRANGER, HERE), {"tls_ca": True}, "an authority that this device does not know"),
        (None, {"tls_ca": True}, "it does not speak TLS"),
    ],
    ids=["tls-wanted", "other-authority", "plain"],
)
async def test_tls_that_does_not_do_by_the_clients_own_error(own, config, said, ca):
    async with serving(tls=own and Tls(own)) as (_, address):
        finding = last((await examined(address, **({"tls_ca": ca} if config else {})))[0])
    assert (finding.check, finding.status, finding.exit_code) == ("connection", "fail", 5), finding
    assert said in f"{finding.detail}; {finding.fix}"


async def test_a_certificate_that_ends_soon(ca):
    own = issued(AUTHORITY, HERE, not_before=NOW - timedelta(100), not_after=NOW + timedelta(9, hours=1))
    async with serving(tls=Tls(own)) as (_, address):
        found = {item.check: item for item in (await examined(address, tls_ca=ca))[0]}
    assert found["certificate"].status == "warn"
    assert f"valid until {NOW + timedelta(9, hours=1):%Y-%m-%d} (9 days)" in found["certificate"].detail
    assert found["server"].status == "ok"


# -- token, description, distance ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "fix"), [("", "--token-file"), ("wrong", "check --token-file, add the token")]
)
async def test_a_token_that_is_not_accepted(token, fix, tmp_path):
    path = tmp_path / "token"
    path.write_text(token)
    path.chmod(0o600)
    async with serving(Tenants((("secret-1", "alice"),))) as (_, address):
        finding = last((await examined(address, token_file=str(path) if token else ""))[0])
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
