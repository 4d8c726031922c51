"""Metrics beyond this machine: over TLS, with an operator's key; probes without one."""

import ssl
from pathlib import Path

import httpx
import pytest

from lab.testbed.processes import Process
from opensled.core.errors import UsageError
from opensled.metrics.exposition import MetricsPort
from opensled.metrics.registry import Metric
from opensled.metrics.scrape_guard import ScrapeGuard, scrape_guard
from opensled.net.probes import Probes
from tests.certificates import AUTHORITY, HERE, STRANGER, issued, written
from tests.commands import opensled
from verify_server.options.serve_config import ServeConfig
from verify_server.start.start_ports import scraping

EXAMPLE = Metric("example", "An example.", lambda: 7)
KEY = "operators-key-1"


@pytest.fixture
def files(tmp_path):
    """Options of a server with TLS, tokens and keys of operators."""
    names = {}
    identity = issued(AUTHORITY, HERE)
    texts = {"cert": identity.cert, "key": identity.key}
    texts |= {"keys": f"{KEY}\n".encode(), "tokens": b"secret-1 kitchen\n"}
    for name, text in texts.items():
        path = tmp_path / name
        path.write_bytes(text)
        path.chmod(0o600)
        names[name] = str(path)
    written(tmp_path)
    return names


def config(files, **options):
    return ServeConfig(
        **{
            "metrics": "0.0.0.0:0",
            "tls_cert": files["cert"],
            "tls_key": files["key"],
            "operator_keys": files["keys"],
            **options,
        }
    )


def get(address, path, key="", trusted=AUTHORITY):
    context = ssl.create_default_context()
    trusted.configure_trust(context)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"https://{address}{path}", headers=headers, verify=context)


@pytest.fixture
def port(files):
    probes = Probes()
    probes.unready = lambda: ""
    opened = MetricsPort("0.0.0.0:0", [EXAMPLE], probes, scraping(config(files)))
    yield opened.address.replace("0.0.0.0", HERE)
    opened.close()


def test_an_operator_scrapes_over_tls(port):
    assert "opensled:example 7.0" in get(port, "/metrics", KEY).text


@pytest.mark.parametrize("key", ["", "secret-1", KEY + "x", "ü"])
def test_nobody_else_reads_metrics(port, key):
    """Not a tenant either: metrics name the others."""
    reply = get(port, "/metrics", key) if key.isascii() else _odd(port, key)
    assert reply.status_code == 401 and reply.headers["WWW-Authenticate"] == "Bearer"
    assert "opensled:" not in reply.text and "operator" in reply.text


def _odd(port, key):
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    headers = {b"Authorization": f"Bearer {key}".encode("latin-1")}
    return httpx.get(f"https://{port}/metrics", headers=headers, verify=context)


def test_a_kubelet_has_no_key(port):
    for path in ("/livez", "/readyz", "/healthz"):
        assert httpx.get(f"https://{port}{path}", verify=False).status_code == 200


def test_no_answer_without_tls_and_none_for_who_trusts_another_authority(port):
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{port}/metrics")
    with pytest.raises(httpx.ConnectError):
        get(port, "/metrics", KEY, STRANGER)
    assert get(port, "/metrics", KEY).status_code == 200


def test_a_certificate_that_is_replaced_counts_for_new_connections(files, monkeypatch):
    monkeypatch.setattr("opensled.process.watched_file.CHECK_SECONDS", 0.0)
    opened = MetricsPort("0.0.0.0:0", [EXAMPLE], guard=scraping(config(files)))
    address = opened.address.replace("0.0.0.0", HERE)
    try:
        assert get(address, "/metrics", KEY).status_code == 200
        renewed = issued(STRANGER, HERE)
        for name, text in (("cert", renewed.cert), ("key", renewed.key)):
            Path(files[name]).write_bytes(text)
        assert get(address, "/metrics", KEY, STRANGER).status_code == 200
    finally:
        opened.close()


def test_a_certificate_that_is_none_is_an_error_at_once(files):
    with pytest.raises(UsageError, match="not a PEM certificate and its key"):
        MetricsPort("0.0.0.0:0", [], guard=ScrapeGuard(files["keys"], files["key"], lambda _: None))


@pytest.mark.parametrize("lacking", [{"operator_keys": ""}, {"tls_cert": "", "tls_key": ""}])
def test_beyond_this_machine_it_needs_both(files, lacking):
    with pytest.raises(
        UsageError, match=r"--tls-cert, --tls-key and --operator-keys FILE, or listen on 127.0.0.1"
    ):
        scraping(config(files, **lacking))
    assert scraping(config(files, **lacking, insecure_metrics=True)) == ScrapeGuard()


def test_on_loopback_it_asks_for_nothing(files):
    for address in ("127.0.0.1:0", "[::1]:9410", "localhost:9410", ""):
        assert scraping(config(files, metrics=address)) == ScrapeGuard()
    assert scrape_guard("0.0.0.0:1", True, "", "", None, "") == ScrapeGuard()


def test_a_real_server_and_a_real_device_behind_tls(files, tmp_path):
    tls = ["--tls-cert", files["cert"], "--tls-key", files["key"]]
    engine = ["serve", "--engine", "tests.fake_target:load", "--listen"]
    serve = [*engine, f"{HERE}:0", *tls, "--tokens", files["tokens"]]
    scraped = ["--metrics", "0.0.0.0:0"]
    token = tmp_path / "token"
    token.write_text("secret-1")
    token.chmod(0o600)
    with Process([*serve, *scraped, "--operator-keys", files["keys"]], isolated=True) as server:
        trusts = ["--tls-ca", str(tmp_path / "ca.pem"), "--token-file", str(token)]
        link = ["--server", server.wait_ready(), *trusts]
        http = ["--http", f"{HERE}:0", "--http-tls-cert", files["cert"], "--http-tls-key", files["key"]]
        edge = ["edge", *link, "--drafter", "none", *http, "--http-keys", files["keys"], *scraped]
        with Process(edge, isolated=True) as device:
            device.wait_ready()
            for process in (server, device):
                (line,) = (line for line in process.lines if line.startswith("metrics on https://"))
                address = (
                    line.removeprefix("metrics on https://").removesuffix("/metrics").replace("0.0.0.0", HERE)
                )
                assert "opensled:build_info" in get(address, "/metrics", KEY).text
                assert get(address, "/metrics", "secret-1").status_code == 401
                assert get(address, "/readyz").text == "ready\n"


@pytest.mark.parametrize("verb", ["serve", "edge", "relay"])
def test_an_open_port_is_refused_at_the_start(verb):
    run = opensled(verb, "--metrics", "192.0.2.1:9410", variables={"OPENSLED_NO_CONFIG": "1"})
    assert run.returncode == 2 and "OPENSLED_INSECURE_METRICS=1" in run.stderr and "keys" in run.stderr
    assert run.stderr.count("\n") == 1
