"""The page without a browser: what is served, under which headers, what its chat tells, and who may watch."""

import asyncio
import base64
import hashlib
import re
from typing import get_args

import httpx
import pytest

from http_api.app import build_app
from http_api.page.document import FILE, page, policy
from http_api.page.views import conversation
from opensled.cli.colour import CODES
from opensled.core.answer import Chunk, Origin
from opensled.core.errors import EngineError, Overloaded, Unreachable
from opensled.core.messages import Prefill
from opensled.models.examples import ANY, SMALL, TINY, examples
from opensled.text.origins import ORIGINS as ORIGINS_TABLE
from opensled.text.origins import possible
from tests.fake_backend import HELLO, STATS, FakeBackend, call, chat, refusal
from tests.page_world import CHAT, EVENTS, HTML, ORIGINS, SWITCH, CountingView, SpeakingBackend, request, told
from tests.system import until
from tests.tiny_drafts import tiny_tokenizer

SOURCE = FILE.read_text()
SCRIPT, STYLE = (re.search(rf"<{name}>(.*?)</{name}>", SOURCE, re.DOTALL)[1] for name in ("script", "style"))
MARKUP = SOURCE.replace(SCRIPT, "").replace(STYLE, "")


# -- the file -----------------------------------------------------------------------------------------------------


def test_a_browser_gets_the_page_and_a_client_of_ollama_its_words():
    shown = request("GET", "/", headers=HTML)
    assert shown.content == FILE.read_bytes() and shown.headers["content-type"] == "text/html; charset=utf-8"
    for method, headers in (("GET", {}), ("GET", {"accept": "*/*"}), ("HEAD", {})):
        probed = request(method, "/", headers=headers)
        assert probed.status_code == 200 and probed.text == ("Ollama is running" if method == "GET" else "")
        assert probed.headers["content-type"].startswith("text/plain")
        assert probed.headers["content-length"] == str(len("Ollama is running"))


def test_without_a_view_there_is_no_page():
    assert call(FakeBackend(), "/", method="GET", headers=HTML).text == "Ollama is running"
    for path in (EVENTS, SWITCH, CHAT):
        for method in ("GET", "POST"):
            named = {"host": "127.0.0.1:8411"}
            assert call(FakeBackend(), path, chat(), method, headers=named).status_code == 404


def test_the_headers_under_which_a_browser_runs_it():
    headers = request("GET", "/", headers=HTML).headers
    assert headers["x-frame-options"] == "DENY" and headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["vary"] == "Accept" and headers["cache-control"] == "no-cache"
    assert "set-cookie" not in headers


def test_nothing_but_the_files_own_script_and_style_runs_or_loads():
    rules = dict(rule.split(" ", 1) for rule in page()[1]["Content-Security-Policy"].split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["frame-ancestors"] == rules["trusted-types"] == "'none'"
    assert rules["connect-src"] == "'self'" and rules["img-src"] == "data:"
    assert rules["require-trusted-types-for"] == "'script'"
    for name, text in (("script", SCRIPT), ("style", STYLE)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"
    assert "unsafe" not in policy(SOURCE) and "*" not in policy(SOURCE) and "http" not in policy(SOURCE)


def test_the_policy_follows_the_file():
    assert policy(SOURCE) != policy(SOURCE.replace("</script>", "//</script>"))


def test_the_file_names_no_address_and_makes_no_markup_of_text():
    assert set(re.findall(r"[a-z]+://[^\s\"'`<>)]*", SOURCE)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\son[a-z]+\s*=", MARKUP) and not re.search(r"\sstyle\s*=", MARKUP)
    assert not re.findall(r"<(?:script|style)\s", SOURCE) and len(re.findall(r"<script|<style", SOURCE)) == 2
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc|setHTML"
    assert not re.search(forbidden, SCRIPT)
    assert not re.search(r"document\.cookie|localStorage|indexedDB|serviceWorker|\bimport\(", SCRIPT)
    assert "javascript:" not in SOURCE and not re.search(r"@import|url\(", STYLE)


def test_it_asks_only_what_is_served():
    asked = set(re.findall(r"fetch\(\"([^\"]+)\"", SCRIPT))
    # Below its own path, wherever a proxy has that
    assert {f"/{path}" for path in asked} == {CHAT, EVENTS, SWITCH}
    assert len(re.findall(r"\bfetch\(", SCRIPT)) == 3 and "XMLHttpRequest" not in SCRIPT


def test_each_origin_has_the_colour_that_it_has_in_the_terminal():
    """The page gets names, colours and meanings from the table that the terminal reads; each colour has a style."""
    assert set(ORIGINS_TABLE) == {*get_args(Origin), "provisional"}
    for colour in {facts.colour for facts in ORIGINS_TABLE.values()} - {""}:
        assert colour in CODES and re.search(rf"\.{colour} \{{[^}}]*underline", STYLE), colour
    assert not re.search(r"accepted by the target|rejected", SCRIPT)  # no second table
    told = conversation("tiny", ["server"])
    assert told["possible"] == ["server"] and told["origins"]["bonus"]["colour"] == "cyan"


def test_origins_that_cannot_occur_are_in_no_legend():
    none = {"drafts": False, "loose": False, "provisional": False, "alone": False}
    assert possible(**none) == possible(**{**none, "loose": True}) == ["server"]
    assert possible(**{**none, "drafts": True}) == ["accepted", "recovered", "bonus", "server"]
    assert "loose" in possible(**{**none, "drafts": True, "loose": True})
    assert possible(**{**none, "provisional": True}) == ["server", "provisional"]
    assert possible(**{**none, "alone": True}) == ["server", "local", "relay"]


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("tiny", TINY), ("tiny-f16", TINY), ("tiny-hub", TINY), ("tiny-vision", ()), ("smollm2", SMALL),
        ("SmolLM2-135M-Instruct", SMALL), ("Qwen/Qwen2.5-7B", ANY), ("", ANY),
    ],
)  # fmt: skip
def test_examples_suit_the_model(model, asked):
    assert examples(model) == asked


# -- its chat -----------------------------------------------------------------------------------------------------

SAID = (
    "def area(width, height):\n    return width * height\n",
    "Grüße 👍 und ein 日本 🇩🇪",
    " two  spaces",
    "",
)


def said_ids(text):
    return tiny_tokenizer().encode(text)


@pytest.mark.parametrize("cut", [0, 1, 2])
@pytest.mark.parametrize("step", [1, 3, 100])
@pytest.mark.parametrize("text", SAID)
def test_the_pieces_are_the_text_of_an_answer(text, step, cut):
    """Also when the answer ends within a character."""
    ids = said_ids(text)
    ids = (*ids[: len(ids) - cut], 0) if cut else ids
    backend = SpeakingBackend(ids, step)
    whole = call(backend, body=chat()).json()["choices"][0]["message"]["content"]
    news = told(request("POST", CHAT, backend=backend, json=chat()))
    pieces = [piece for event in news for piece in event["pieces"]]
    assert "".join(piece[0] for piece in pieces) == (whole or "")
    assert {origin for _, origin in pieces} <= set(ORIGINS)
    assert news[-1]["finish_reason"] == "eos" and "finish_reason" not in str(news[:-1])
    assert news[-1]["usage"] == call(backend, body=chat()).json()["usage"]
    assert backend.tasks[0] == backend.tasks[1]


def test_each_piece_has_the_origin_of_its_token():
    ids = said_ids("return width * height")
    pieces = [
        piece
        for event in told(request("POST", CHAT, backend=SpeakingBackend(ids, 2), json=chat()))
        for piece in event["pieces"]
    ]
    assert [origin for _, origin in pieces] == [ORIGINS[place % len(ORIGINS)] for place in range(len(ids))]


class OfflineBackend(FakeBackend):
    async def _chunks(self, number, top):
        yield Chunk("", said_ids("a"), origins=("server",))
        yield Chunk("", (), prefill=Prefill(1200, 6596, 0))
        yield Chunk("", (), waiting=3.0, provisional=" perhaps <b>")
        yield Chunk("", said_ids(" b"), origins=("local",) * len(said_ids(" b")))
        yield Chunk("", (), "eos", STATS)


def test_what_is_not_confirmed_and_what_goes_on_instead():
    news = told(request("POST", CHAT, backend=OfflineBackend(), json=chat()))
    statuses = [None, "reading the prompt, 1,200 of 6,596", "waiting for the server, 3 s", None, None]
    assert [event.get("status") for event in news] == statuses
    assert [event.get("guess") for event in news] == [None, None, " perhaps <b>", None, None]
    assert [origin for _, origin in news[3]["pieces"]] == ["local"] * len(news[3]["pieces"])


@pytest.mark.parametrize(
    ("field", "value"), [("n", 2), ("stop", "a"), ("stop", ["a", "b"]), ("n", 0), ("nothing", 1)]
)
def test_what_the_page_cannot_show_is_refused_by_name(field, value):
    backend = FakeBackend()
    error = refusal(request("POST", CHAT, backend=backend, json=chat(**{field: value})))
    assert error["param"] == field and not backend.tasks


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"messages": 1}', b'{"messages": [{"role": "user", "content": "\\ud800"}]}']
)
def test_a_bad_body_reaches_no_backend(body):
    backend = FakeBackend()
    headers = {"content-type": "application/json"}
    refusal(request("POST", CHAT, backend=backend, content=body, headers=headers))
    assert not backend.tasks


def test_the_pages_option_reaches_the_device():
    for drafts in (True, False):
        backend = FakeBackend()
        told(request("POST", CHAT, backend=backend, json=chat(opensled={"drafts": drafts})))
        assert backend.tasks[0].drafts is drafts
    refused = refusal(request("POST", CHAT, json=chat(opensled={"drafts": "no"})))
    assert refused["param"] == "opensled.drafts"


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (Unreachable("the server is away"), "unreachable", 503),
        (Overloaded("full", retry_after=3), "overloaded", 429),
        (EngineError("broken"), "engine", 500),
    ],
)
def test_an_error_has_a_status_before_the_first_word_and_is_the_last_event_after_it(error, code, status):
    ids = said_ids("return width")
    early = request("POST", CHAT, backend=SpeakingBackend(ids, fail_after=0, error=error), json=chat())
    assert refusal(early, status)["code"] == code
    late = told(
        request("POST", CHAT, backend=SpeakingBackend(ids, 1, fail_after=1, error=error), json=chat())
    )
    assert late[0]["pieces"] and late[-1]["error"]["code"] == code and "finish_reason" not in late[-1]


async def test_an_answer_ends_with_the_process():
    ending, backend = asyncio.Event(), SpeakingBackend(said_ids("a"), endless=True)
    app = build_app(backend, ending=ending, view=CountingView())
    asking = asyncio.ensure_future(_asked(app))
    await until(lambda: backend.tasks)
    ending.set()
    news = told(await asyncio.wait_for(asking, 20))
    assert news[-1]["error"]["code"] == "unreachable" and backend.closed == 1


async def _asked(app):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        return await client.post(CHAT, json={"messages": HELLO})
