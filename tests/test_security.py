"""Who gets in: tokens, TLS, and what a listen address requires."""

import asyncio
import os
import re
import shlex
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from edge_client.device.device import connect
from edge_client.device.prompt_config import GenerateConfig
from home.desk.authority import issue
from lab.testbed.credentials import LIFETIME, Authority, fleet_flags
from opensled.cli.config import options
from opensled.cli.main import CONFIGS, VERBS, _parser
from opensled.core.errors import OpenSledError, Unauthorized, Unreachable, UsageError
from opensled.core.files import Identity, read_identity, read_secret
from opensled.core.messages import Open
from tests.certificates import AUTHORITY, HERE, STRANGER, issued, written
from tests.fakes import FakeEngine, continuation
from tests.serving import GREEDY, PROMPT, finish, first_reply, linked, serving
from verify_server.access.security import Tenants, Tls, read_tenants, read_tls, require_safe_listen
from verify_server.front import service
from verify_server.options.serve_config import ServeConfig
from verify_server.start.command import serve


async def test_a_valid_token_admits_and_nothing_else_does(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("# comment\nsecret-1 alice\nsecret-2 bob\n")
    path.chmod(0o600)
    tenants = read_tenants(path)
    async with serving(tenants) as (manager, address):
        for token, words in (
            ("", "pass --token-file FILE"),
            ("wrong", "not one of the server's; check --token"),
        ):
            async with linked(address, token=token) as link:
                with pytest.raises(Unauthorized, match=words):
                    await link.describe()
                with pytest.raises(Unauthorized):
                    await first_reply(link, Open(PROMPT, GREEDY))
        async with linked(address, token="secret-1") as link:
            opened, _ = await finish(link)
        async with linked(address, token="secret-2") as link:
            await first_reply(link, Open(PROMPT, GREEDY, resume_token=opened.resume_token))
        assert {session.tenant for session in manager.remembered} <= {"alice", "bob"}
        assert manager._signer.session_of(opened.resume_token, "bob") is None


@pytest.mark.parametrize(
    ("mode", "own", "fine"),
    [
        (0o600, True, True), (0o400, True, True), (0o640, True, False), (0o604, True, False),
        (0o440, False, True), (0o640, False, True),  # systemd's LoadCredential=, Kubernetes: root's, lent to us
        (0o660, False, False), (0o444, False, False),
    ],
)  # fmt: skip
def test_a_secret_is_for_us_alone(tmp_path, monkeypatch, mode, own, fine):
    path = tmp_path / "key"
    path.write_text("secret")
    path.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + (not own))
    if fine:
        assert read_secret(path, "key file") == b"secret"
    else:
        with pytest.raises(UsageError, match=r"key is readable by others; run: chmod 600"):
            read_secret(path, "key file")


def test_the_commands_of_the_security_page_exist():
    """What the page tells people to start starts with flags that exist; openssl's part was run by hand."""
    page = (Path(__file__).parents[1] / "docs/security.md").read_text().replace("\\\n", " ")
    commands = [shlex.split(line)[1:] for line in page.splitlines() if line.startswith("opensled ")]
    assert [verb for verb, *_ in commands] == ["serve", "edge"]
    for verb, *flags in commands:
        _parser(verb, options(CONFIGS.get(verb))).parse_args(flags)
    for flag in re.findall(r"`(--[a-z-]+)", page):
        known = {flag for verb in VERBS for item in options(CONFIGS.get(verb)) for flag in item.flags}
        assert flag in known, flag


def test_listening_beyond_this_machine_needs_tls_and_tokens():
    require_safe_listen("127.0.0.1:0", has_tls=False, knows_clients=False, insecure=False)
    require_safe_listen("[::1]:0", has_tls=False, knows_clients=False, insecure=False)
    require_safe_listen("0.0.0.0:0", has_tls=True, knows_clients=True, insecure=False)
    require_safe_listen("0.0.0.0:0", has_tls=False, knows_clients=False, insecure=True)
    for tls, clients in ((True, False), (False, True), (False, False)):
        with pytest.raises(UsageError, match="--insecure"):
            require_safe_listen("0.0.0.0:0", has_tls=tls, knows_clients=clients, insecure=False)


async def test_half_of_a_handshake_is_not_held_for_long(tmp_path, monkeypatch):
    options = dict(service._OPTIONS)
    assert options["grpc.server_handshake_timeout_ms"] <= 30_000
    monkeypatch.setattr(service, "_OPTIONS", [*{**options, "grpc.server_handshake_timeout_ms": 500}.items()])
    async with serving(tls=_tls(tmp_path)) as (_, address):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        assert await asyncio.wait_for(reader.read(), 90) == b""
        writer.close()


def _tls(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    trustme.CA().cert_pem.write_to_path(tmp_path / "stranger.pem")
    (tmp_path / "key.pem").chmod(0o600)
    return read_tls(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"), "")


async def test_tls(tmp_path):
    async with serving(tls=_tls(tmp_path)) as (_, address):
        async with linked(address, tls=True, tls_ca=tmp_path / "ca.pem") as link:
            assert (await finish(link))[1] == continuation(PROMPT, 20)
        for options in ({}, {"tls": True, "tls_ca": tmp_path / "stranger.pem"}):
            async with linked(address, **options) as link:
                with pytest.raises(Unreachable):
                    await link.describe()


async def test_a_busy_port_is_a_clear_error():
    async with serving() as (manager, address), linked(address) as link:
        face = service.VerifyService(manager, await link.describe(), manager.inputs.text, Tenants())
        with pytest.raises(OpenSledError, match="cannot listen"):
            await service.start(face, address, None)


@pytest.mark.parametrize("content", [b"", b"no certificate", "kein Zertifikat: \u00e4".encode(), b"\xff\xfe"])
async def test_a_file_without_a_certificate_is_named(tmp_path, content):
    path = tmp_path / "ca.pem"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"ca\.pem holds no PEM certificate"):
        async with linked("127.0.0.1:1", tls=True, tls_ca=path):
            pass


def test_a_bad_certificate_pair_is_named(tmp_path):
    (tmp_path / "cert.pem").write_text("no certificate")
    (tmp_path / "key.pem").write_text("no key")
    (tmp_path / "key.pem").chmod(0o600)
    config = ServeConfig(tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem"))
    with pytest.raises(UsageError, match="not a PEM certificate and its key"):
        serve(config)


# -- certificates of clients --------------------------------------------------------------------------------------


LONG_AGO = {"not_before": datetime(2020, 1, 1), "not_after": datetime(2020, 2, 1)}
TOKENS = Tenants((("secret-1", "alice"), ("secret-2", "bob")))
BY_CERTIFICATE = Tenants(by_certificate=True)


@pytest.fixture
def ca(tmp_path):
    return written(tmp_path)


@asynccontextmanager
async def guarded(tenants=TOKENS, own=None):
    """A server that asks for certificates; yields (manager, engine, address). Refusals must leave no trace."""
    engine = FakeEngine(num_blocks=100)
    tls = Tls(own or issued(AUTHORITY, HERE), AUTHORITY.cert_pem.bytes())
    async with serving(tenants, tls=tls, engine=engine) as (manager, address):
        yield manager, engine, address


async def refused(manager, engine, address, error, **options):
    """Every call of this client fails with `error`, and neither a session nor a computation came of it."""
    async with linked(address, tls=True, **options) as link:
        for call in (link.describe(), link.tokenizer_json(), first_reply(link, Open(PROMPT, GREEDY))):
            with pytest.raises(error):
                await call
    assert engine.computed == 0 and not manager.remembered and not manager.loop.machine.sessions


async def test_the_right_certificate_and_token_pass(ca):
    async with guarded() as (_, _, address):
        who = {"tls_ca": ca, "identity": issued(common_name="kitchen"), "token": "secret-1"}
        async with linked(address, tls=True, **who) as link:
            assert (await link.describe()).model_id == "fake"
            assert (await finish(link))[1] == continuation(PROMPT, 20)


@pytest.mark.parametrize(
    "identity",
    [None, issued(**LONG_AGO, common_name="a"), issued(STRANGER, common_name="a")],
    ids=["none", "expired", "foreign"],
)
@pytest.mark.parametrize("tenants", [TOKENS, BY_CERTIFICATE], ids=["tokens", "certificates"])
async def test_any_other_certificate_is_refused(ca, identity, tenants):
    async with guarded(tenants) as (manager, engine, address):
        await refused(manager, engine, address, Unreachable, tls_ca=ca, identity=identity, token="secret-1")


async def test_a_servers_certificate_admits_no_client(ca):
    """Extended key usage counts: whoever steals a server's key is no client with it."""
    authority = Authority("one for both")
    ca.write_bytes(authority.pem)
    own = Identity(*authority.server(HERE))
    engine = FakeEngine(num_blocks=100)
    async with serving(BY_CERTIFICATE, tls=Tls(own, authority.pem), engine=engine) as (manager, address):
        await refused(manager, engine, address, Unreachable, tls_ca=ca, identity=own)
        async with linked(address, tls=True, tls_ca=ca, identity=Identity(*authority.client("hall"))) as link:
            await first_reply(link, Open(PROMPT, GREEDY))
            assert [session.tenant for session in manager.remembered] == ["hall"]


@pytest.mark.parametrize("token", ["", "wrong", "secret-1x", "secret"])
async def test_the_right_certificate_needs_a_token_too(ca, token):
    async with guarded() as (manager, engine, address):
        who = {"tls_ca": ca, "identity": issued(common_name="kitchen"), "token": token}
        await refused(manager, engine, address, Unauthorized, **who)


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        (issued(AUTHORITY, "elsewhere.example"), "for another name"),
        (issued(AUTHORITY, HERE, **LONG_AGO), "certificate has expired; renew"),
        (issued(STRANGER, HERE), "does not know; name the authority"),
    ],
    ids=["wrong host", "expired", "foreign"],
)
async def test_a_device_talks_to_no_other_server(ca, own, cause):
    async with guarded(own=own) as (manager, engine, address):
        who = {"tls_ca": ca, "identity": issued(common_name="kitchen"), "token": "secret-1"}
        await refused(manager, engine, address, Unreachable, **who)
        async with linked(address, tls=True, **who) as link:
            with pytest.raises(Unreachable, match=cause):
                await link.describe()


async def test_without_tokens_the_common_name_is_the_tenant(ca):
    async with guarded(BY_CERTIFICATE) as (manager, engine, address):
        await refused(manager, engine, address, Unauthorized, tls_ca=ca, identity=issued())  # names nobody
        async with linked(address, tls=True, tls_ca=ca, identity=issued(common_name="kübel")) as link:
            await first_reply(link, Open(PROMPT, GREEDY))
            assert [session.tenant for session in manager.remembered] == ["kübel"]


def named(authority, *names):
    """A client's identity with several common names."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    own = authority._signing
    cert = issue(subject, key, own.certificate.subject, own.key, LIFETIME)
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity(cert.public_bytes(serialization.Encoding.PEM), encoded)


@pytest.mark.parametrize(
    "names",
    [("kitchen", "hall"), ("kitchen\0.evil",), ("\0kitchen",), ("kitchen\n",), ("kitchen", "kitchen")],
)
async def test_a_certificate_that_could_name_two_tenants_is_refused(ca, names):
    """gRPC tells of each of these only "kitchen", or nothing."""
    authority = Authority("names")
    ca.write_bytes(authority.pem)
    engine, tls = FakeEngine(num_blocks=100), Tls(Identity(*authority.server(HERE)), authority.pem)
    async with serving(BY_CERTIFICATE, tls=tls, engine=engine) as (manager, address):
        who = {"tls_ca": ca, "identity": named(authority, *names)}
        await refused(manager, engine, address, Unauthorized, **who)
        async with linked(address, tls=True, tls_ca=ca, identity=named(authority, "kitchen")) as link:
            await first_reply(link, Open(PROMPT, GREEDY))
            assert [session.tenant for session in manager.remembered] == ["kitchen"]


@pytest.mark.parametrize("names", [(), (b"",), (b"a", b"b"), (b"\xff",), (b"a\0b",)])
def test_a_certificate_that_does_not_name_one_tenant(names):
    with pytest.raises(Unauthorized, match="common name"):
        BY_CERTIFICATE.of("", names)
    assert BY_CERTIFICATE.of("Bearer secret-1", (b"alice",)) == "alice"
    assert Tenants().of("", names) == "local"


async def _reflects(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    return [reply async for reply in stub.ServerReflectionInfo(iter([request]))] != []


async def _refuses_reflection(channel):
    """Writes nothing: gRPC's own error of a message to a call that has ended would hide the server's answer."""
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    return await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_who_is_not_known_learns_the_health_and_nothing_else():
    for tenants, open_to_all in ((Tenants(), True), (TOKENS, False)):
        async with serving(tenants) as (_, address), grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            reply = await health.Check(health_pb2.HealthCheckRequest())
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
            assert await (_reflects if open_to_all else _refuses_reflection)(channel)


# -- flags ------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, ca):
    identity = issued(AUTHORITY, HERE)
    (tmp_path / "cert.pem").write_bytes(identity.cert)
    (tmp_path / "key.pem").write_bytes(identity.key)
    (tmp_path / "key.pem").chmod(0o600)
    return {name: str(tmp_path / f"{name}.pem") for name in ("cert", "key", "ca")}


def test_the_servers_flags_are_checked_at_the_start(files, tmp_path):
    assert read_tls("", "", "") is None
    tls = read_tls(files["cert"], files["key"], files["ca"])
    assert tls.client_ca == AUTHORITY.cert_pem.bytes() and "PRIVATE" not in repr(tls)
    with pytest.raises(UsageError, match="--tls-client-ca needs --tls-cert and --tls-key"):
        serve(ServeConfig(tls_client_ca=files["ca"]))
    with pytest.raises(UsageError, match=r"key\.pem holds no PEM certificate"):
        serve(ServeConfig(tls_cert=files["cert"], tls_key=files["key"], tls_client_ca=files["key"]))
    with pytest.raises(UsageError, match="--tls-client-ca FILE"):
        serve(ServeConfig(listen="0.0.0.0:0", tls_cert=files["cert"], tls_key=files["key"]))
    (tmp_path / "key.pem").chmod(0o640)
    with pytest.raises(UsageError, match=r"key\.pem is readable by others; run: chmod 600"):
        serve(ServeConfig(tls_cert=files["cert"], tls_key=files["key"]))


def test_the_devices_flags_are_checked_before_it_connects(files, tmp_path):
    def refusal(**flags):
        with pytest.raises(UsageError) as error:
            asyncio.run(connect(GenerateConfig(server=f"{HERE}:1", **flags)))
        return str(error.value)

    assert "--client-cert and --client-key go together" in refusal(client_cert=files["cert"])
    assert "not a PEM certificate and its key" in refusal(client_cert=files["ca"], client_key=files["key"])
    (tmp_path / "key.pem").chmod(0o644)
    assert "readable by others" in refusal(client_cert=files["cert"], client_key=files["key"])
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o604)
    assert "readable by others" in refusal(token_file=str(tmp_path / "token"))


async def test_the_flags_of_the_demo_bring_every_device_in():
    with fleet_flags(HERE, ["kitchen", "hall"]) as fleet:
        served = ServeConfig(**_values(fleet.server()))
        folder = Path(served.tokens).parent
        assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
        tls = read_tls(served.tls_cert, served.tls_key, served.tls_client_ca)
        async with serving(read_tenants(Path(served.tokens)), tls=tls) as (manager, address):
            for name in ("kitchen", "hall"):
                flags = _values(fleet.device(name))
                who = {
                    "tls_ca": Path(flags["tls_ca"]),
                    "identity": read_identity(flags["client_cert"], flags["client_key"]),
                    "token": Path(flags["token_file"]).read_text(),
                }
                async with linked(address, tls=True, **who) as link:
                    await first_reply(link, Open(PROMPT, GREEDY))
                    assert name in {session.tenant for session in manager.remembered}
    assert not folder.exists()


def _values(flags):
    """Field names and values of a list of flags."""
    return {flag[2:].replace("-", "_"): value for flag, value in zip(flags[::2], flags[1::2])}
