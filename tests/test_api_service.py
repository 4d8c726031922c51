"""The field `opensled` of the API: how an answer is to be served. And what a full server looks like from there."""

import json

import httpx
import pytest
from openai import OpenAI

from opensled.core.errors import InvalidRequest, Overloaded
from tests.fake_backend import HELLO, FakeBackend, call, chat, refusal

PATHS = {"/v1/chat/completions": {"messages": HELLO}, "/v1/completions": {"prompt": "a"}}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ({"pace": 20, "background": True}, (20.0, True)),
        ({"pace": 0}, (0.0, None)),
        ({"background": False, "pace": None}, (None, False)),
        ({}, (None, None)),
        (None, (None, None)),
    ],
)
def test_what_is_left_out_is_as_the_device_was_told(path, field, wanted):
    backend = FakeBackend()
    assert call(backend, path, {**PATHS[path], "n": 2, "opensled": field}).status_code == 200
    assert [(task.pace, task.background) for task in backend.tasks] == [wanted] * 2


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("fast", "opensled"),
        ([1], "opensled"),
        ({"pace": "20"}, "opensled.pace"),
        ({"pace": -1}, "opensled.pace"),
        ({"pace": 1e7}, "opensled.pace"),
        ({"background": 1}, "opensled.background"),
        ({"device": "kitchen"}, "opensled.device"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(path, field, param):
    backend = FakeBackend()
    assert refusal(call(backend, path, {**PATHS[path], "opensled": field}))["param"] == param
    assert not backend.tasks


def test_the_official_client_can_send_it():
    """What its `extra_body` makes of the request is the body above."""
    seen = []
    client = OpenAI(api_key="none", base_url="http://edge/v1", http_client=recording(seen))
    client.chat.completions.create(
        model="tiny", messages=HELLO, extra_body={"opensled": {"pace": 20, "background": True}}
    )
    assert seen[0]["opensled"] == {"pace": 20, "background": True}


def recording(seen):
    def answer(request):
        seen.append(json.loads(request.content))
        reply = call(FakeBackend(), body=seen[-1])
        return httpx.Response(reply.status_code, content=reply.content, headers=reply.headers)

    return httpx.Client(transport=httpx.MockTransport(answer))


def test_a_pace_that_the_server_refuses_is_named_as_the_client_knows_it():
    backend = FakeBackend(InvalidRequest("too fast", "pace"), fail_after=0)
    assert refusal(call(backend, body=chat(opensled={"pace": 5})))["param"] == "opensled.pace"


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (2.5, "3")])
def test_a_full_server_is_a_429_that_says_when_to_come_back(seconds, header):
    backend = FakeBackend(Overloaded("full", retry_after=seconds), fail_after=0)
    response = call(backend, body=chat())
    assert refusal(response, 429)["type"] == "rate_limit_error"
    assert response.headers["Retry-After"] == header
