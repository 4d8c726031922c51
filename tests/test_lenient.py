"""Fields of unknown effect: refused by name, or with `--lenient` left out and named in a header."""

import json

import pytest

from http_api.bodies import IGNORED_HEADER
from tests.fake_backend import HELLO, FakeBackend, call, chat, refusal

REASONING = {"unheard_of": "low", "mood": "high"}
BODIES = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/api/chat": {"messages": HELLO},
    "/api/generate": {"prompt": "Hi"},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [True, False])
def test_unknown_fields_are_left_out_and_named(path, stream):
    body = {**BODIES[path], **REASONING, "stream": stream}
    assert call(FakeBackend(), path, body).status_code == 400
    backend = FakeBackend()
    response = call(backend, path, body, lenient=True)
    assert response.status_code == 200 and len(backend.tasks) == 1
    assert response.headers[IGNORED_HEADER] == "unheard_of, mood"
    usual = call(FakeBackend(), path, {**BODIES[path], "stream": stream}, lenient=True)
    assert IGNORED_HEADER not in usual.headers


def ignored(body, path="/v1/chat/completions"):
    return call(FakeBackend(), path, body, lenient=True).headers.get(IGNORED_HEADER)


def test_annotations_and_nested_fields_are_named_too():
    assert ignored(chat(store=True, service_tier="flex", mood=1)) == "store, service_tier, mood"
    turn = {
        "role": "user",
        "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "a"}}],
        "mood": 1,
    }
    assert ignored({"messages": [turn]}) == "messages[].content[].cache_control, messages[].mood"
    asked = {"input": "Hi", "text": {"mood": 1}, "truncation": "auto"}
    assert ignored(asked, "/v1/responses") == "text.mood, truncation"
    assert ignored({"messages": HELLO, "think": True, "options": {"num_gpu": 1, "new": 2}}, "/api/chat")


@pytest.mark.parametrize("wrong", [{"temperature": "hot"}, {"messages": []}, {"model": "other"}, {"n": 0}])
def test_what_is_read_is_still_checked(wrong):
    refused = call(FakeBackend(), body={**chat(**REASONING), **wrong}, lenient=True)
    assert refused.status_code in (400, 404) and refusal(refused, refused.status_code)["param"]


def test_the_header_is_short_and_printable():
    names = [f"field-{number}" for number in range(100)]
    header = ignored(chat(**dict.fromkeys(names, 1)))
    assert header == ", ".join(names[:16]) + ", and 84 more"
    fields = {"a\r\nSet-Cookie: b": 1, "x" * 5000: 1, "\u00e9\ud83d": 1}
    content = json.dumps(chat(**fields)).encode()
    evil = call(FakeBackend(), content=content, lenient=True).headers[IGNORED_HEADER]
    assert evil.isascii() and evil.isprintable() and len(evil) < 300 and "Set-Cookie" in evil


def test_fields_without_number_are_refused_after_all():
    body = chat(**{str(number): 1 for number in range(2000)})
    assert call(FakeBackend(), body=body, lenient=True).status_code == 400
