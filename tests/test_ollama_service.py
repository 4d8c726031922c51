"""Ollama's API as a service: errors, waiting, clients that leave, what clients probe, and who may call."""

import asyncio
import json

import httpx
import pytest

from http_api.app import build_app
from http_api.bodies import MAX_CHAT_BODY
from http_api.guard import Access
from opensled.core.answer import Chunk
from opensled.core.errors import EngineError, InvalidRequest, Overloaded, Unreachable
from tests.fake_backend import HELLO, STATS, FakeBackend, call, chat
from tests.ollama_bodies import CHATS, WEBUI_GENERATE, WEBUI_UNLOAD
from tests.test_ollama import ask, lines, refusal

ERRORS = [
    (InvalidRequest("4000 tokens do not fit", "prompt"), 400, "messages: 4000 tokens do not fit"),
    (Overloaded("full", retry_after=2.5), 429, "full"),
    (Unreachable("down"), 503, "down"),
    (EngineError("broken"), 500, "broken"),
    (ValueError("secret"), 500, "internal error"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status", "text"), ERRORS, ids=lambda value: type(value).__name__)
def test_errors_before_the_first_word_have_a_status(error, status, text, stream):
    response = ask(FakeBackend(error, fail_after=0), messages=HELLO, stream=stream)
    assert refusal(response, status).startswith(text) and "secret" not in response.text
    assert response.headers.get("retry-after") == {429: "3", 503: "1"}.get(status)


@pytest.mark.parametrize("error", [Unreachable("the server is lost"), ValueError("secret")])
def test_an_error_midway_is_a_line(error):
    backend = FakeBackend(error, fail_after=2)
    *pieces, last = lines(ask(backend, messages=HELLO))
    assert pieces[-1]["message"]["content"] == "Hello" and list(last) == ["error"]
    assert "secret" not in last["error"] and backend.closed == 1


def test_the_field_of_a_server_s_error_is_the_client_s_word():
    response = ask(
        FakeBackend(InvalidRequest("too long", "prompt"), fail_after=0), "/api/generate", prompt="Hi"
    )
    assert refusal(response) == "prompt: too long"


class AwayBackend(FakeBackend):
    """Its server is away after the first word."""

    async def _chunks(self, number, top):
        yield self._chunk("Hello", 40, top)
        for _ in range(2):
            await asyncio.sleep(0.01)
            yield Chunk("", (), waiting=1.0)
        yield self._chunk("", 0, top, self.reason, STATS)


def streamed(app):
    async def request():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
            return await client.post("/api/chat", json=chat())

    return lines(asyncio.run(request()))


@pytest.mark.parametrize(("heartbeat", "beats"), [(0.001, 2), (0, 0)])
def test_a_waiting_stream_sends_empty_lines_of_json(heartbeat, beats):
    *pieces, last = streamed(build_app(AwayBackend(), heartbeat=heartbeat))
    assert [piece["message"]["content"] for piece in pieces] == ["Hello", *[""] * beats] and last["done"]


async def test_an_ending_device_ends_the_answer():
    ending, backend = asyncio.Event(), FakeBackend(endless=True)
    app = build_app(backend, ending=ending)
    asyncio.get_running_loop().call_later(0.05, ending.set)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
        response, closed = await client.post("/api/chat", json=chat()), backend.closed
    assert "shutting down" in lines(response)[-1]["error"] and closed == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_work(stream):
    backend = FakeBackend(endless=True)
    body = json.dumps(chat(stream=stream)).encode()
    arrived = asyncio.Event()
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if parts:
            return parts.pop()
        while not backend.tasks:
            await asyncio.sleep(0)
        if stream:
            await arrived.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message.get("body"):
            arrived.set()

    scope = {"type": "http", "method": "POST", "path": "/api/chat", "raw_path": b"", "query_string": b"",
             "headers": [(b"content-type", b"application/json")], "root_path": "", "scheme": "http",
             "http_version": "1.1", "server": ("edge", 80), "client": ("me", 1)}  # fmt: skip
    await asyncio.wait_for(build_app(backend)(scope, receive, send), 20)
    assert backend.closed == 1


def get(path, access=Access(), method="GET", **headers):
    async def request():
        app = build_app(FakeBackend(), access)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(request())


def test_what_clients_probe():
    response = get("/")
    assert response.status_code == 200 and response.text == "Ollama is running"
    assert get("/", method="HEAD").status_code == 200
    version = get("/api/version").json()["version"]
    # open_webui/routers/ollama.py reads it like this and asks for 0.6.4, Codex with --oss for 0.13.4
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)


def test_the_model_in_all_lists():
    (tag,) = get("/api/tags").json()["models"]
    (loaded,) = get("/api/ps").json()["models"]
    assert tag["name"] == tag["model"] == loaded["model"] == "tiny:latest"
    assert tag["digest"] == loaded["digest"] and len(tag["digest"]) == 64 and loaded["context_length"] == 1024
    shown = call(FakeBackend(), "/api/show", {"model": "tiny", "verbose": True}).json()
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 1024
    assert shown["capabilities"] == ["completion", "tools"]
    unguided = call(FakeBackend(capabilities=()), "/api/show", {"model": "tiny"}).json()
    assert unguided["capabilities"] == ["completion"]
    assert "nonsense" in refusal(call(FakeBackend(), "/api/show", {"nonsense": 1}))


@pytest.mark.parametrize("name", ["push", "create", "copy", "delete"])
def test_what_a_device_cannot_do_is_refused(name):
    assert f"/api/{name}" in refusal(call(FakeBackend(), f"/api/{name}", {"model": "other"}))


def test_the_model_that_is_here_need_not_be_pulled():
    for body in ({"model": "tiny"}, {"name": "tiny:latest", "insecure": False}):
        for stream in ({}, {"stream": True}, {"stream": False}):
            answer = call(FakeBackend(), "/api/pull", {**body, **stream})
            assert answer.json() == {"status": "success"}
    assert "'tiny' is served here" in refusal(call(FakeBackend(), "/api/pull", {"model": "llama3"}), 404)


def test_refusals_before_the_fields_are_read_speak_ollama_too():
    assert "/api/nothing" in refusal(get("/api/nothing"), 404)
    assert refusal(get("/api/chat"), 405)
    assert refusal(call(FakeBackend(), "/api/chat", content=b"{"))[0]
    assert refusal(call(FakeBackend(), "/api/chat", content=b" " * (MAX_CHAT_BODY + 1)), 413)
    plain = {"content-type": "text/plain"}
    assert refusal(call(FakeBackend(), "/api/chat", content=b"{}", headers=plain), 415)


def test_the_guards_are_those_of_the_other_routes():
    keyed = Access(("key-one",))
    for path in ("/api/tags", "/api/ps", "/api/version"):
        assert "API key" in refusal(get(path, keyed), 401)
        assert get(path, keyed, authorization="Bearer key-one").status_code == 200
        assert refusal(get(path, Access(local=True), host="evil.example"), 403)
        assert refusal(get(path, origin="https://evil.example"), 403)
    assert get("/", keyed).text == "Ollama is running"  # as of Ollama itself: who asks learns nothing else
    assert get("/", origin="https://evil.example").status_code == 403


@pytest.mark.parametrize("name", CHATS)
def test_what_open_webui_and_home_assistant_send_is_served(name):
    body = CHATS[name]
    response = call(FakeBackend(), "/api/chat", body)
    last = lines(response)[-1] if body["stream"] else response.json()
    assert last["done"] and last["model"] == body["model"]


def test_what_open_webui_generates_and_unloads_is_served():
    assert lines(call(FakeBackend(), "/api/generate", WEBUI_GENERATE))[-1]["done"]
    unloaded = call(FakeBackend(), "/api/generate", WEBUI_UNLOAD)
    assert unloaded.headers["content-type"] == "application/json"  # its client reads no other type
    assert unloaded.json()["done_reason"] == "unload"
