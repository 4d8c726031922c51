"""The API of a device, over a fake backend: raw HTTP, and the official client against a real server."""

import json

import httpx
import openai
import pytest

from opensled.core.errors import (
    InvalidRequest,
    Overloaded,
    Unreachable,
)
from opensled.core.messages import ChatMessage
from tests.fake_backend import HELLO, STATS, USUAL, WORDS, FakeBackend, call, chat, events, refusal
from tests.system import until


def test_a_chat_answer():
    reply = call(FakeBackend(), body=chat()).json()
    assert reply["object"] == "chat.completion" and reply["id"].startswith("chatcmpl-")
    assert reply["model"] == "tiny" and reply["system_fingerprint"] == "opensled-0/tiny/exact/match"
    choice = reply["choices"][0]
    assert choice["message"]["content"] == "".join(WORDS)
    assert choice["finish_reason"] == "stop"
    assert reply["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 4,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 2,
            "rejected_prediction_tokens": 3,
        },
        "opensled": {"rule": "match", **STATS.figures()},
    }


def test_a_completion():
    backend = FakeBackend(reason="length")
    reply = call(backend, "/v1/completions", {"model": "tiny", "prompt": "Once"}).json()
    assert reply["object"] == "text_completion"
    assert reply["choices"][0]["text"] == "".join(WORDS)
    assert reply["choices"][0]["finish_reason"] == "length"
    prompt, params, stop = backend.asked[0]
    assert (prompt, params.max_tokens, params.temperature, params.seed, stop) == ("Once", 16, 1.0, None, ())


def test_a_chat_stream():
    *chunks, done = events(call(FakeBackend(), body=chat(stream=True)))
    assert done == "[DONE]"
    chunks = [json.loads(chunk) for chunk in chunks]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "".join(WORDS)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", chat()), ("/v1/completions", {"model": "tiny", "prompt": "Once"})],
)
def test_a_stream_with_usage(path, body):
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, done = events(call(FakeBackend(), path, body))
    assert done == "[DONE]"
    *pieces, last = [json.loads(chunk) for chunk in chunks]
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 11
    assert all(piece["usage"] is None and piece["choices"] for piece in pieces)


def test_every_parameter_reaches_the_backend():
    backend = FakeBackend()
    body = chat(
        temperature=0.5, top_p=0.9, top_k=5, seed=-3, max_completion_tokens=9, stop=["a", "b"],
        ignore_eos=True, stop_token_ids=[4],
    )  # fmt: skip
    call(backend, body=body)
    prompt, params, stop = backend.asked[0]
    assert prompt == (ChatMessage("user", "Hi"),)
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.9, 5, -3)
    assert (params.max_tokens, params.ignore_eos, params.stop_ids, stop) == (9, True, (4,), ("a", "b"))


def test_a_chat_may_fill_the_context():
    backend = FakeBackend()
    call(backend, body=chat(stop="\n"))
    assert backend.asked[0][1].max_tokens == 1024 and backend.asked[0][2] == ("\n",)


def test_messages_in_all_their_forms():
    backend = FakeBackend()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    repeated = {"role": "assistant", "content": "c", "refusal": None, "annotations": [], "tool_calls": None}
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}, repeated]
    assert call(backend, body=chat(messages=messages)).status_code == 200
    expected = (ChatMessage("system", "be brief"), ChatMessage("user", "ab"), ChatMessage("assistant", "c"))
    assert backend.asked[0][0] == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", "a"), (["a"], "a"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2)), ("", "")],
)
def test_prompts_in_all_their_forms(prompt, expected):
    backend = FakeBackend()
    assert call(backend, "/v1/completions", {"model": "tiny", "prompt": prompt}).status_code == 200
    assert backend.asked[0][0] == expected


def test_fields_that_change_nothing_pass():
    assert call(FakeBackend(), body=chat(**USUAL)).status_code == 200


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (Unreachable("the server is lost"), None),
        (ValueError("secret"), None),
        (InvalidRequest("too long", "prompt"), "messages"),
    ],
)
def test_errors_midway_are_events(error, field):
    backend = FakeBackend(error, fail_after=2)
    *chunks, last = events(call(backend, body=chat(stream=True)))
    assert json.loads(chunks[-1])["choices"][0]["delta"]["content"] == "Hello"
    told = json.loads(last)["error"]
    assert set(told) == {"message", "type", "param", "code"} and told["param"] == field
    assert "secret" not in last
    assert backend.closed == 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_an_end_is_an_error(stream):
    response = call(FakeBackend(reason=None), body=chat(stream=stream))
    assert "finish reason" in response.text and "[DONE]" not in response.text


def test_models_and_health():
    backend = FakeBackend()
    models = call(backend, "/v1/models", method="GET").json()
    assert models["object"] == "list"
    assert models["data"][0]["id"] == "tiny" and models["data"][0]["object"] == "model"
    assert call(backend, "/v1/models/tiny", method="GET").json()["id"] == "tiny"
    assert refusal(call(backend, "/v1/models/other", method="GET"), 404)["param"] == "model"
    assert call(backend, "/health", method="GET").json() == {"status": "ok", "server": "reachable"}
    assert call(backend, "/readyz", method="GET").json()["status"] == "ready"
    backend.server_away = True
    assert call(backend, "/health", method="GET").json() == {"status": "ok", "server": "away"}
    assert refusal(call(backend, "/readyz", method="GET"), 503)["code"] == "unreachable"
    status = call(backend, "/status", method="GET").json()
    assert status["drafting"] and status["length"] == 4 and status["words"] == backend.status.words


def test_unknown_paths_and_methods():
    unknown = refusal(call(FakeBackend(), "/v1/nothing", method="GET"), 404)
    assert "/v1/nothing; GET /openapi.json" in unknown["message"] and unknown["code"] == "not_found"
    response = call(FakeBackend(), "/v1/chat/completions", method="GET")
    assert refusal(response, 405)["code"] == "method_not_allowed" and response.headers["allow"] == "POST"
    assert refusal(response, 405)["message"].endswith("it takes POST")


def test_the_official_client_sees_errors_by_type(client):
    api = client(FakeBackend(Overloaded("full", retry_after=2), fail_after=0))
    with pytest.raises(openai.RateLimitError) as caught:
        api.chat.completions.create(model="tiny", messages=HELLO)
    assert caught.value.response.headers["retry-after"] == "2"
    with pytest.raises(openai.BadRequestError, match="presence_penalty"):
        api.chat.completions.create(model="tiny", messages=HELLO, presence_penalty=3)
    with pytest.raises(openai.NotFoundError):
        api.chat.completions.create(model="other", messages=HELLO)


def test_the_official_client_sees_an_error_midway(client):
    api = client(FakeBackend(Unreachable("the server is lost"), fail_after=2))
    stream = api.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="the server is lost"):
        list(stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/page/chat"]
)
async def test_a_reader_who_leaves_ends_the_work(served, path, stream):
    backend = FakeBackend(endless=True)
    body = (
        {"messages": HELLO, "stream": stream}
        if path != "/v1/responses"
        else {"input": "Hi", "stream": stream}
    )
    url = f"http://127.0.0.1:{served(backend)}{path}"
    with pytest.raises(httpx.ReadTimeout):
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", url, json=body, timeout=0.3) as response,
        ):
            assert await anext(response.aiter_lines())
            raise httpx.ReadTimeout("the reader leaves")
    await until(lambda: backend.closed == 1, 20)
