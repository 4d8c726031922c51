"""Who may open the page and what it asks for: names, origins, what browsers say of a request, and keys."""

import asyncio
import socket
from functools import cache
from itertools import product

import httpx
import pytest

from http_api.app import build_app
from http_api.guard import Access
from opensled.net.address import names_own_machine
from tests.fake_backend import FakeBackend, chat, refusal
from tests.foreign_hosts import FOREIGN_HOSTS
from tests.page_world import CHAT, EVENTS, HTML, SWITCH, CountingView

KEY = {"authorization": "Bearer key-one"}
LOCAL, WIDE, KEYED = Access(local=True), Access(), Access(("key-one",))
INVITED = Access(origins=("https://chat.example", "http://pi.example:8411"))
OWN = socket.gethostname().lower().partition(".")[0]
BODIES = {CHAT: chat(), SWITCH: {"device": "a", "drafting": True}}
ASKED = [("GET", EVENTS), ("POST", CHAT), ("POST", SWITCH)]
PATHS = [("GET", "/"), *ASKED]
HERE = "127.0.0.1:8411"


@pytest.fixture(autouse=True, scope="module")
def runner():
    """One event loop for all requests, as an app is of one."""
    with asyncio.Runner() as made:
        served.cache_clear()
        served.runner = made
        yield


@cache
def served(access, ends):
    """An app, and what it shows and asks. `ends`: a stream of looks does so at once."""
    view, backend, ending = CountingView(), FakeBackend(), asyncio.Event()
    if ends:
        ending.set()
    return httpx.ASGITransport(build_app(backend, access, ending, view=view), False), view, backend


def ask(access, method="GET", path=EVENTS, host=HERE, scheme="http", origins=(), **headers):
    """One request; the reply, and whether anything was looked at, asked, or switched."""
    transport, view, backend = served(access, path != CHAT)
    view.watchers = 0
    view.switched.clear()
    backend.tasks.clear()
    named = [("host", host), *(("origin", origin) for origin in origins)]
    named += [(name.replace("_", "-"), value) for name, value in ({**HTML, **headers}).items()]

    async def sent():
        async with httpx.AsyncClient(
            transport=transport, base_url=f"{scheme}://127.0.0.1", trust_env=False, verify=False
        ) as client:
            body = BODIES[path] if method == "POST" else None
            return await client.request(method, path, json=body, headers=named)

    return served.runner.run(sent()), bool(view.watchers or view.switched or backend.tasks)


def admitted(*arguments, **options):
    reply, done = ask(*arguments, **options)
    return reply.status_code == 200 and (done or "<!doctype html>" in reply.text)


def denied(code, *arguments, **options):
    """Whether it is refused so, before anything happens; the error."""
    reply, done = ask(*arguments, **options)
    error = refusal(reply, 403)
    assert error["code"] == code and not done and "access-control-allow-origin" not in reply.headers
    return error["message"]


# -- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_on_loopback_no_foreign_name_opens_anything(host):
    for access, (method, path) in product((LOCAL, Access(("key-one",), local=True)), PATHS):
        assert "--http" in denied("forbidden_host", access, method, path, host, **KEY)
        own = [f"http://{host}"]  # a name that was pointed here names itself as the origin
        denied("forbidden_host", access, method, path, host, origins=own, **KEY)


@pytest.mark.parametrize("host", [HERE, "localhost:8411", "[::1]:8411", "127.0.0.1", "localhost"])
def test_on_loopback_the_page_is_its_own_origin(host):
    for method, path in PATHS:
        assert admitted(LOCAL, method, path, host)
        assert admitted(LOCAL, method, path, host, origins=[f"http://{host}"], sec_fetch_site="same-origin")


@pytest.mark.parametrize(
    "host", ["192.0.2.7:8411", "[2001:db8::7]:8411", "127.0.0.1.", f"{OWN}:8411", f"{OWN}.local:8411", HERE]
)
def test_beyond_loopback_addresses_and_own_names_are_the_pages_own_origin(host):
    for access, (method, path) in product((WIDE, KEYED), PATHS):
        assert admitted(access, method, path, host, **KEY)
        assert admitted(access, method, path, host, origins=[f"http://{host}"], **KEY)


POINTED = (
    "evil.example", "evil.example:8411", f"{OWN}.evil.example", f"{OWN}.local.evil.example", "localhost.evil.example",
    "0x7f.1", "[::1", "", "a@127.0.0.1",
)  # fmt: skip


@pytest.mark.parametrize("host", POINTED)
def test_beyond_loopback_a_name_that_was_pointed_here_gets_nothing_but_the_empty_page(host):
    """DNS rebinding: a browser takes the stranger's page and ours for one origin, and sends no `Origin` to read."""
    own = [f"http://{host}"]
    for access, (method, path) in product((WIDE, KEYED), ASKED):
        advice = denied("forbidden_origin", access, method, path, host, origins=own, **KEY)
        assert ("--cors-origin" in advice) == (host not in ("[::1", "", "a@127.0.0.1"))  # only what it takes
        assert "--cors-origin" in denied("forbidden_host", access, method, path, host, **KEY)
    assert admitted(WIDE, "GET", "/", host)  # the file is the same for everybody


@pytest.mark.parametrize(("method", "path"), ASKED)
def test_a_name_that_the_operator_wrote_down_is_let_in(method, path):
    assert all(admitted(INVITED, method, path, host) for host in ("pi.example:8411", "chat.example:443"))
    assert admitted(INVITED, method, path, "pi.example:8411", origins=["http://pi.example:8411"])
    denied("forbidden_host", INVITED, method, path, "pi.example:8412")


@pytest.mark.parametrize(("method", "path"), ASKED)
def test_with_tls_the_browser_has_checked_the_name(method, path):
    host, origin = "pi.example:8411", "https://pi.example:8411"
    assert admitted(KEYED, method, path, host, "https", origins=[origin], **KEY)
    assert admitted(KEYED, method, path, host, "https", **KEY)
    denied("forbidden_origin", KEYED, method, path, host, "https", origins=["https://evil.example"], **KEY)
    denied("forbidden_origin", KEYED, method, path, host, "https", origins=["http://pi.example:8411"], **KEY)


def test_a_machine_without_a_name_has_none(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "")
    for host in ("", ".local", ":80", "-"):
        assert not names_own_machine(host)
    monkeypatch.setattr(socket, "gethostname", lambda: "Pi.Home.Example")
    assert all(map(names_own_machine, ("PI.local:1", "pi", "pi.lan", "pi.fritz.box:80", "pi.tail1.ts.net")))
    assert not any(map(names_own_machine, ("pi.home.example", "home.lan", ".lan", "x.pi.lan", "pi.lan.x")))
    monkeypatch.setattr(socket, "gethostname", lambda: "my_pc")
    assert names_own_machine("my_pc:8000")


# -- origins ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origins", [
    ["http://evil.example"], ["null"], [""], ["http://127.0.0.1:8412"], ["https://127.0.0.1:8411"],
    ["http://127.0.0.1"], ["http://localhost:8411"], ["http://127.0.0.1:8411/"], ["http://127.0.0.1:8411 "+"http://a"],
    ["http://127.0.0.1:8411", "http://evil.example"], ["http://evil.example", "http://127.0.0.1:8411"],
    ["null", "http://127.0.0.1:8411"], ["HTTP://127.0.0.1:8411"], ["http://127.0.0.1:8411@evil.example"],
])  # fmt: skip
def test_no_other_origin_is_the_pages_own(origins):
    for access, (method, path) in product((LOCAL, WIDE, KEYED, INVITED), PATHS):
        denied("forbidden_origin", access, method, path, origins=origins, sec_fetch_site="same-origin", **KEY)


def test_two_own_origins_are_no_other_one():
    assert admitted(LOCAL, "GET", EVENTS, origins=[f"http://{HERE}"] * 2)


def test_an_invited_page_may_read_the_looks_and_nobody_else():
    chat_page = ["https://chat.example"]
    for method, path in ASKED:
        assert admitted(INVITED, method, path, origins=chat_page, sec_fetch_site="cross-site")
        denied("forbidden_origin", INVITED, method, path, origins=["https://chat.example.evil.example"])


# -- what browsers say of a request -------------------------------------------------------------------------------

FOREIGN = ("same-site", "cross-site")


LOADS = (
    ("no-cors", "image"), ("no-cors", "script"), ("no-cors", "empty"), ("cors", "empty"), ("same-origin", "empty"),
    ("navigate", "iframe"), ("navigate", "frame"), ("navigate", "object"), ("navigate", "embed"),
    ("websocket", "websocket"),
)  # fmt: skip


@pytest.mark.parametrize(("mode", "kind"), LOADS)
def test_what_a_foreign_page_asks_for_is_refused(mode, kind):
    headers = {"sec_fetch_mode": mode, "sec_fetch_dest": kind, **KEY}
    for access, site, (method, path) in product((LOCAL, WIDE, KEYED), FOREIGN, PATHS):
        denied("forbidden_origin", access, method, path, sec_fetch_site=site, **headers)
    for method, path in PATHS:  # a dashboard that is invited may show the page
        reply, done = ask(INVITED, method, path, sec_fetch_site="cross-site", **headers)
        allowed = f"frame-ancestors {' '.join(INVITED.origins)};" in str(reply.headers)
        assert allowed == (reply.status_code == 200) == (path == "/") and not done


@pytest.mark.parametrize("site", FOREIGN)
def test_a_link_is_followed_and_a_form_is_not(site):
    link = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert admitted(LOCAL, "GET", "/", **link)
    for path in (CHAT, SWITCH):
        denied("forbidden_origin", LOCAL, "POST", path, **link)
    for method in ("HEAD", "OPTIONS"):
        reply, done = ask(LOCAL, method, "/", **link)
        assert reply.status_code == 403 and not done


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("site", ["none", "same-origin"])
@pytest.mark.parametrize(
    ("mode", "kind"), [("navigate", "document"), ("cors", "empty"), ("same-origin", "empty")]
)
def test_the_user_and_the_page_itself_are_let_in(method, path, site, mode, kind):
    assert admitted(LOCAL, method, path, sec_fetch_site=site, sec_fetch_mode=mode, sec_fetch_dest=kind)


def test_a_foreign_page_reads_no_other_path_of_the_api_either():
    for path in ("/v1/models", "/status", "/health", "/api/tags", "/openapi.json"):
        reply, _ = ask(LOCAL, "GET", path, sec_fetch_site="cross-site", sec_fetch_mode="no-cors")
        assert refusal_code(reply) == (403, "forbidden_origin")


def refusal_code(reply):
    error = reply.json()["error"]
    return reply.status_code, error.get("code") if isinstance(error, dict) else "forbidden_origin"


# -- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"authorization": "key-one"}])
def test_with_keys_the_page_is_open_and_what_it_asks_for_is_not(given):
    for access in (KEYED, Access(("key-one",), local=True)):
        assert admitted(access, "GET", "/", **given)
        for method, path in ASKED:
            reply, done = ask(access, method, path, **given)
            assert refusal(reply, 401)["code"] == "invalid_api_key" and not done
            assert admitted(access, method, path, **KEY)


def test_no_path_around_the_key():
    paths = "/page/events/ //page/events /page/%65vents /page/events;a /PAGE/EVENTS /page/../page/events"
    for path in paths.split():
        reply, done = ask(KEYED, "GET", path)
        assert reply.status_code == 401 and not done, path
