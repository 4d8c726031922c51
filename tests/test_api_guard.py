"""Who may call the API of a device: keys, pages of the web, names in `Host`; and that nothing is computed before."""

import asyncio
import json
import socket
import ssl
import threading

import httpx
import openai
import pytest
import trustme

from edge_client.device.command import _access
from edge_client.device.config import EdgeConfig
from http_api.app import build_app
from http_api.guard import Access, read_keys
from http_api.server import ApiServer
from opensled.core.errors import NotFound, UsageError
from opensled.net.address import web_origins
from tests.fake_backend import FakeBackend, chat, refusal, through
from tests.foreign_hosts import FOREIGN_HOSTS

PAGE = "https://chat.example"
KEYS = ("key-one", "key-two")
CHAT = "/v1/chat/completions"
# What a page may send anywhere without asking first (fetch.spec.whatwg.org: CORS-safelisted).
SIMPLE_TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")


def send(access, method="POST", path=CHAT, host="127.0.0.1:8411", **headers):
    """One request through the app; returns the response and what the backend was asked."""
    backend = FakeBackend()
    content = json.dumps(chat()).encode() if method == "POST" else None
    named = {"host": host, "content-type": "application/json"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    return through(build_app(backend, access), method, path, content=content, headers=named), backend.asked


# -- keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer ", "Bearer key-on", "Bearer key-one2", "Basic key-one", "key-one",
              "Bearer key-one,key-two", "Bearer \u00fc"]
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/models", "/nothing", "/v1/models/"])
def test_anything_else_does_not(path, given):
    headers = {} if given is None else {"authorization": given.encode("latin-1")}
    response, asked = send(Access(KEYS), "POST" if "completions" in path else "GET", path, **headers)
    error = refusal(response, 401)
    assert (error["type"], error["code"], error["param"]) == ("authentication_error", "invalid_api_key", None)
    assert response.headers["www-authenticate"] == "Bearer"
    assert not asked and not any(key in response.text for key in KEYS)
    wrong = bool((given or "").removeprefix("Bearer").strip())
    assert error["message"].startswith("this API key is none" if wrong else "an API key is needed")


@pytest.mark.parametrize("access", [Access(), Access(KEYS), Access(KEYS, (PAGE,), local=True)])
def test_health_needs_no_key_and_tells_nothing_else(access):
    for path, status in (("/health", "ok"), ("/readyz", "ready")):
        response, _ = send(access, "GET", path)
        assert response.status_code == 200 and response.json() == {"status": status, "server": "reachable"}


def test_the_key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# who may call\nkey-one\n\n  key-two  # the tablet\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_keys(path)
    path.chmod(0o600)
    assert read_keys(path) == KEYS
    for content, problem in (("# none\n", "no key"), ("a b\n", ":1: expected one"), ("\u00e4", "ASCII")):
        path.write_text(content)
        with pytest.raises(UsageError, match=problem):
            read_keys(path)
    with pytest.raises(NotFound, match="key file"):
        read_keys(tmp_path / "none")
    assert "key-one" not in repr(Access(KEYS))


# -- names and pages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8411", "127.0.0.1", "localhost:8411", "LocalHost", "localhost.:8411", "[::1]:8411", "127.5.6.7:8411"],
)  # fmt: skip
def test_names_of_loopback_are_answered(host):
    assert send(Access(local=True), host=host)[0].status_code == 200


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize(("method", "path"), [("POST", CHAT), ("GET", "/v1/models"), ("GET", "/health")])
def test_a_name_that_was_pointed_at_loopback_is_refused(method, path, host):
    response, asked = send(Access(local=True), method, path, host=host)
    error = refusal(response, 403)
    assert error["code"] == "forbidden_host" and "--http" in error["message"] and not asked


def test_beyond_loopback_any_name_will_do():
    assert send(Access(KEYS), host="pi.example", authorization="Bearer key-one")[0].status_code == 200


@pytest.mark.parametrize("access", [Access(), Access(local=True), Access(KEYS), Access(origins=(PAGE,))])
@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:8412", "https://127.0.0.1:8411", PAGE + ":444", ""],
)
@pytest.mark.parametrize("kind", ["application/json", *SIMPLE_TYPES])
def test_a_foreign_page_is_refused(access, origin, kind):
    response, asked = send(access, origin=origin, content_type=kind, authorization="Bearer key-one")
    error = refusal(response, 403)
    assert error["code"] == "forbidden_origin" and not asked
    assert ("--cors-origin" in error["message"]) == (origin not in ("", "null"))
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    "kind", [*SIMPLE_TYPES, "text/plain;charset=UTF-8", "Text/Plain ; x=application/json"]
)
def test_a_type_that_pages_may_send_unasked_is_refused(kind):
    response, asked = send(Access(local=True), content_type=kind)
    error = refusal(response, 415)
    assert "json" in error["message"] and not asked


FORM, BYTES = "application/x-www-form-urlencoded", "application/octet-stream"


@pytest.mark.parametrize(
    ("path", "kind", "headers", "status"),
    [
        (CHAT, BYTES, {}, 200),  # LiteLLM, whose pages would have to ask first
        ("/api/chat", BYTES, {}, 200),
        ("/api/chat", FORM, {}, 200),  # curl -d
        ("/api/chat", f"{FORM}; charset=utf-8", {}, 200),
        *(("/api/chat", FORM, {"sec_fetch_site": site}, 415) for site in ("same-origin", "none")),
        ("/api/chat", FORM, {"origin": "http://127.0.0.1:8411"}, 415), ("/api/chat", FORM, {"origin": "null"}, 403),
        ("/api/chat", "text/plain", {}, 415), ("/api/chat", "multipart/form-data", {}, 415), (CHAT, FORM, {}, 415),
        (CHAT, "", {}, 200), (CHAT, "text/json", {}, 200), (CHAT, "application/vnd.api+json", {}, 200),
        (CHAT, "application/json, text/plain", {}, 200), (CHAT, "text/plain, application/json", {}, 415),
    ],
)  # fmt: skip
def test_bodies_of_programs_need_no_type_where_no_browser_asks(path, kind, headers, status):
    response, asked = send(Access(local=True), path=path, content_type=kind, **headers)
    assert response.status_code == status and bool(asked) == (status == 200)
    if status == 415:
        assert "send Content-Type: application/json" in response.text


def test_cors_is_off_by_default():
    response, _ = send(Access(local=True))
    assert not [name for name in response.headers if name.startswith("access-control")]
    preflight = {"origin": PAGE, "access_control_request_method": "POST"}
    assert send(Access(local=True), "OPTIONS", **preflight)[0].status_code == 403


@pytest.mark.parametrize("keys", [(), KEYS])
def test_a_page_that_was_let_in(keys):
    access = Access(keys, (PAGE, "http://localhost:3000"), local=True)
    asks = {
        "origin": PAGE,
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,content-type,x-stainless-os",
        "access_control_request_private_network": "true",
    }
    preflight, asked = send(access, "OPTIONS", **asks)  # browsers send no key with it
    assert preflight.status_code == 200 and not asked
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert preflight.headers["access-control-allow-private-network"] == "true"
    response, asked = send(access, origin=PAGE, authorization="Bearer key-two")
    assert response.status_code == 200 and asked
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "access-control-allow-credentials" not in response.headers
    if keys:
        response, asked = send(access, origin=PAGE)
        assert refusal(response, 401) and not asked
        assert response.headers["access-control-allow-origin"] == PAGE  # so that the page can read the error


@pytest.mark.parametrize(
    "listed",
    ["*", "chat.example", f"{PAGE},", "null", "https://", "https://*", "http://a*", "https://a@b"],
)
def test_what_is_no_origin_is_named(listed):
    with pytest.raises(UsageError, match=r"is not an origin|cannot be allowed"):
        web_origins(listed)


@pytest.mark.parametrize(
    ("written", "origin"),
    [
        ("https://chat.example/", PAGE), ("https://Chat.example", PAGE), ("https://chat.example:443", PAGE),
        ("https://chat.example/app?x=1", PAGE), ("http://localhost:80", "http://localhost"),
        ("http://localhost:*", "http://localhost:5173"), ("http://localhost:*", "http://localhost"),
        ("moz-extension://*", "moz-extension://1f2e-3d"), ("https://*.example", "https://a.b.example"),
        ("file://", "file://"), ("file:///home", "file://"), ("app://Obsidian.md", "app://obsidian.md"),
        ("vscode-webview://0a1b", "vscode-webview://0A1B"), ("http://[::1]:3000/", "http://[::1]:3000"),
    ],
)  # fmt: skip
def test_an_origin_may_be_written_as_people_write_it(written, origin):
    response, asked = send(Access(origins=web_origins(written)), origin=origin)
    assert response.status_code == 200 and asked
    assert response.headers["access-control-allow-origin"] == origin
    for other in ("http://localhost.evil.example", "https://evilexample", "null", "http://localhost:80.evil"):
        assert refusal(send(Access(origins=web_origins(written)), origin=other)[0], 403)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/", "/v1/models", "*"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_probe_without_a_host_is_answered(path, method):
    response, _ = send(Access(local=True), method, path, host="")
    assert response.status_code == (204 if method == "OPTIONS" else 200)
    assert method != "OPTIONS" or response.headers["allow"]


def test_a_name_that_a_proxy_passes_on_is_let_in_once_it_is_written_down():
    host = "home.example"
    assert f"--cors-origin https://{host}" in refusal(send(Access(local=True), host=host)[0], 403)["message"]
    access = Access(origins=(f"https://{host}",), local=True)
    assert send(access, host=host)[0].status_code == 200
    assert send(access, host=host, origin=f"https://{host}")[0].status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_api_key": "key-one", "authorization": ""}, 200), ({"api_key": "key-two", "authorization": "Bearer"}, 200),
        ({"x_api_key": "key-one", "authorization": "Basic eDp5"}, 200), ({"authorization": "Bearer  key-one "}, 200),
        ({"x_api_key": "none", "authorization": "bearer key-one"}, 200),
        ({"x_api_key": "key-one", "authorization": "Bearer None"}, 200), ({"api_key": "no", "x_api_key": ""}, 401),
        ({"x_api_key": "key", "authorization": "Bearer key-on"}, 401),
    ],
)  # fmt: skip
def test_one_right_key_among_headers_opens(headers, status):
    response = send(Access(KEYS), **headers)[0]
    assert response.status_code == status and ("none of those" in response.text) == (status == 401)


# -- addresses and TLS ------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """Flags that name a key file and a certificate for 127.0.0.1, and the authority that signed it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "keys").write_text("key-one\n")
    for name in ("key.pem", "keys"):
        (tmp_path / name).chmod(0o600)
    tls = {"http_tls_cert": str(tmp_path / "cert.pem"), "http_tls_key": str(tmp_path / "key.pem")}
    return {"http_keys": str(tmp_path / "keys")}, tls, authority


def test_beyond_this_machine_needs_keys_and_tls(files, caplog):
    keys, tls, _ = files
    for flags in ({}, keys, tls):
        with pytest.raises(UsageError, match=r"--http-keys, --http-tls-cert and --http-tls-key"):
            _access(EdgeConfig(http="0.0.0.0:0", **flags))
    access = _access(EdgeConfig(http="0.0.0.0:0", **keys, **tls))
    assert (tuple(access.keys), access.origins, access.local) == (("key-one",), (), False)
    assert not caplog.records
    assert _access(EdgeConfig(http="0.0.0.0:0", insecure=True)) == Access()
    assert _access(EdgeConfig(http="0.0.0.0:0", insecure=True, **keys)).keys
    assert [r.getMessage().split()[1] for r in caplog.records] == ["lets", "gets"]
    assert _access(EdgeConfig(cors_origin=PAGE)) == Access((), (PAGE,), local=True)
    with pytest.raises(UsageError, match="--http-tls-cert and --http-tls-key go together"):
        _access(EdgeConfig(http_tls_cert=tls["http_tls_cert"]))


def test_the_official_client_with_a_key_over_https(files):
    _, tls, authority = files
    app = build_app(FakeBackend(), Access(("key-one",), local=True))
    server = ApiServer(app, asyncio.Event(), tls["http_tls_cert"], tls["http_tls_key"])
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    with socket.create_server(("127.0.0.1", 0)) as listener, httpx.Client(verify=trust) as http:
        thread = threading.Thread(target=lambda: asyncio.run(server.run(listener)))
        thread.start()
        try:
            base = f"https://127.0.0.1:{listener.getsockname()[1]}/v1"
            client = openai.OpenAI(base_url=base, api_key="key-one", http_client=http, max_retries=0)
            assert client.chat.completions.create(**chat()).choices[0].message.content
            with pytest.raises(openai.AuthenticationError) as refused:
                client.with_options(api_key="wrong").models.list()
            assert refused.value.code == "invalid_api_key"
        finally:
            http.close()
            server.stop()
            thread.join(30)
    assert not thread.is_alive()
