"""The certificate of the HTTP API is read again when its files change: what pairing renews counts without a restart."""

import asyncio
import logging
import socket
import ssl
import threading
from contextlib import contextmanager

import httpx
import trustme

from http_api.app import build_app
from http_api.server import ApiServer
from tests.fake_backend import FakeBackend
from tests.loops import block_until

AUTHORITY = trustme.CA()


def write(folder, certificate, key=None):
    """A certificate for 127.0.0.1 and a key, by default its own."""
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    (key or certificate).private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "key.pem").chmod(0o600)


@contextmanager
def serving(folder):
    server = ApiServer(
        build_app(FakeBackend()), asyncio.Event(), str(folder / "cert.pem"), str(folder / "key.pem")
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.run(listener)))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.stop()
            thread.join(30)
    assert not thread.is_alive()


def presented(port):
    """The certificate that a new connection gets."""
    trust = ssl.create_default_context()
    AUTHORITY.configure_trust(trust)
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        trust.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
    ):
        return tls.getpeercert(binary_form=True)


def test_a_new_certificate_counts_for_new_connections_and_a_broken_one_does_not(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    first, second = AUTHORITY.issue_cert("127.0.0.1"), AUTHORITY.issue_cert("127.0.0.1")
    write(tmp_path, first)
    with serving(tmp_path) as port:
        shown = presented(port)
        trust = ssl.create_default_context()
        AUTHORITY.configure_trust(trust)
        with httpx.Client(verify=trust, base_url=f"https://127.0.0.1:{port}") as kept:
            assert kept.get("/health").status_code == 200
            write(tmp_path, second)
            block_until(lambda: presented(port) != shown)
            renewed = presented(port)
            assert kept.get("/health").status_code == 200  # open connections go on
        write(tmp_path, second, key=first)
        block_until(lambda: any("cannot be used" in record.getMessage() for record in caplog.records))
        assert presented(port) == renewed
        write(tmp_path, first)
        block_until(lambda: presented(port) == shown)


def test_without_tls_nothing_is_watched(tmp_path):
    server = ApiServer(build_app(FakeBackend()), asyncio.Event())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.run(listener)))
        thread.start()
        try:
            reply = httpx.get(f"http://127.0.0.1:{listener.getsockname()[1]}/health")
            assert reply.status_code == 200
        finally:
            server.stop()
            thread.join(30)
    assert not thread.is_alive()
