"""Who gets in: tokens, TLS, and what a listen address requires."""

import asyncio
import os
import re
import shlex
from pathlib import Path

import pytest
import trustme

from opensled.cli.config import options
from opensled.cli.main import CONFIGS, VERBS, _parser
from opensled.core.errors import OpenSledError, Unauthorized, Unreachable, UsageError
from opensled.core.files import read_secret
from opensled.core.messages import Open
from tests.fakes import continuation
from tests.serving import GREEDY, PROMPT, finish, first_reply, linked, serving
from verify_server.access.security import Tenants, read_tenants, read_tls, require_safe_listen
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


def test_a_token_file_others_can_read_is_refused(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("secret alice\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_tenants(path)
    path.chmod(0o600)
    assert read_tenants(path).of("Bearer secret") == "alice"
    with pytest.raises(Unauthorized):
        read_tenants(path).of("Basic secret")
    path.write_text("secret\n")
    with pytest.raises(UsageError, match="TOKEN TENANT"):
        read_tenants(path)


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
