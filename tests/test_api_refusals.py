"""What the API does not serve is refused by name; nothing a client sends is an internal error."""

import json

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI

from http_api.bodies import MAX_CHAT_BODY
from opensled.core.errors import InvalidRequest, Overloaded
from tests.fake_backend import HELLO, USUAL, FakeBackend, call, chat, refusal

REFUSED = [
    ("n", 0), ("n", 33), ("n", 10**400), ("n", True), ("n", "1"), ("logprobs", 1), ("top_logprobs", 21),
    ("top_logprobs", 1), ("top_logprobs", -1), ("presence_penalty", 2.5), ("frequency_penalty", float("nan")),
    ("presence_penalty", True), ("frequency_penalty", -2.5), ("frequency_penalty", "1"), ("min_p", -0.1),
    ("min_p", 1.5), ("min_p", float("inf")), ("repetition_penalty", 0), ("repetition_penalty", 2.5),
    ("repetition_penalty", -1), ("repetition_penalty", float("nan")), ("repeat_penalty", 2.5),
    ("logit_bias", {"2048": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"05": 1}), ("logit_bias", {"a": 1}),
    ("logit_bias", {"5": 101}), ("logit_bias", {"5": "1"}), ("logit_bias", {"5": float("nan")}),
    ("logit_bias", [5]), ("logit_bias", {str(id): 1 for id in range(1025)}),
    ("audio", {"voice": "a"}), ("nonsense", 1), ("functions", [{}]), ("function_call", {"name": "f"}),
    ("stop_token_ids", [1] * 257), ("stop_token_ids", 0), ("parallel_tool_calls", 1),
    ("messages", []), ("messages", "Hi"), ("messages", None),
    ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", -1), ("temperature", "0"),
    ("temperature", 10**400), ("temperature", True), ("top_p", -1), ("top_p", 2), ("top_k", 1.5),
    ("seed", 1.5), ("seed", "1"), ("max_tokens", 0), ("max_tokens", 2**31), ("max_tokens", "9"),
    ("prompt_logprobs", 21), ("prompt_logprobs", -1), ("prompt_logprobs", True), ("max_completion_tokens", 0),
    ("max_completion_tokens", -2), ("stop", ["a"] * 65), ("stop", 3),
    ("stop", [None]), ("stop", "\ud800"), ("stream", "yes"),
    ("stop_token_ids", [2048]), ("stop_token_ids", [True]), ("ignore_eos", 1), ("model", 3),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_refuses_by_name(field, value):
    body = json.dumps(chat(**{field: value})).encode()
    backend = FakeBackend()
    error = refusal(call(backend, content=body))
    assert error["param"] == field and field in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not backend.asked


@pytest.mark.parametrize("kind", [0, 0.0, 1, True, {"a": 1}, "xml"])
def test_a_form_of_another_type_is_refused(kind):
    error = refusal(call(FakeBackend(), content=json.dumps(chat(response_format={"type": kind})).encode()))
    assert error["param"] == "response_format.type"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (1, "messages[0]"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "text": "a"}, "messages[0].content"),
        ({"role": "user", "content": "\ud800"}, "messages[0].content"),
        ({"role": "critic", "content": "a"}, "messages[0].role"),
        ({"role": "tool", "content": "a", "tool_call_id": 7}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "a", "tool_calls": [{}]}, "messages[0].tool_calls[0]"),
        ({"role": "user", "content": "a", "images": ["aGk="]}, "messages[0].images[0]"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "user", "content": "a", "name": 1}, "messages[0].name"),
        ({"role": "assistant", "content": "a", "refusal": 1}, "messages[0].refusal"),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": 7}},
            "messages[0].function_call.arguments",
        ),
        ({"role": "assistant", "tool_calls": {"a": 1}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": 0.0}, "messages[0].tool_calls"),
        (
            {"role": "assistant", "tool_calls": [{"type": "function", "id": 7}]},
            "messages[0].tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [{"type": "function", "id": "a"}]},
            "messages[0].tool_calls[0].function",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "messages[0].content[0].image_url",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [7]}, "messages[0].content[0]"),
    ],
)
def test_refuses_messages_by_name(message, param):
    content = json.dumps(chat(messages=[message])).encode()
    assert refusal(call(FakeBackend(), content=content))["param"] == param


@pytest.mark.parametrize(
    "prompt",
    [None, [], 5, ["a"] * 65, ["a", [1]], [[1], "a"], [[1], []], [[]], [1, "a"], [2048], [-1], [True], [1.5], {},
     [None]],
)  # fmt: skip
def test_refuses_prompts_by_name(prompt):
    response = call(FakeBackend(), "/v1/completions", {"model": "tiny", "prompt": prompt})
    assert refusal(response)["param"] == "prompt"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", 1), ("suffix", "a"), ("best_of", 2), ("logprobs", 6), ("logprobs", True), ("logprobs", -1),
        ("max_tokens", 0), ("prompt_logprobs", 21), ("prompt_logprobs", "1"),
        ("messages", HELLO), ("max_completion_tokens", 3), ("tools", [{}]),
        ("response_format", {"type": "json_object"}),
    ],
)  # fmt: skip
def test_refuses_completion_fields_by_name(field, value):
    response = call(FakeBackend(), "/v1/completions", {"model": "tiny", "prompt": "a", field: value})
    assert refusal(response)["param"] == field


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_log_probabilities_of_a_prompt_in_vllms_form_come_in_no_stream(path):
    prompt = {"messages": HELLO} if "chat" in path else {"prompt": "a"}
    error = refusal(call(FakeBackend(), path, {**prompt, "prompt_logprobs": 1, "stream": True}))
    assert error["param"] == "prompt_logprobs" and "leave stream out" in error["message"]


def test_an_integer_may_be_written_with_a_fraction_of_nothing():
    backend = FakeBackend()
    assert call(backend, content=json.dumps(chat(top_k=5.0, seed=-1.0, n=2.0)).encode()).status_code == 200
    assert [task.params.top_k for task in backend.tasks] == [5, 5] and backend.tasks[0].params.seed == -1
    call(backend, "/v1/completions", {"model": "tiny", "prompt": [7.0], "stop_token_ids": [9.0]})
    assert backend.tasks[-1].prompt == (7,) and backend.tasks[-1].params.stop_ids == (9,)


def test_of_two_limits_the_smaller_one_holds():
    backend = FakeBackend()
    call(backend, body=chat(max_tokens=5, max_completion_tokens=6))
    call(backend, body=chat(max_tokens=9, max_completion_tokens=8))
    assert [task.params.max_tokens for task in backend.tasks] == [5, 8]


def test_a_chat_needs_a_template():
    backend = FakeBackend(has_chat_template=False)
    error = refusal(call(backend, body=chat()))
    assert error["param"] == "messages" and "/v1/completions" in error["message"]


HOSTILE = [
    b"", b"{", b"[]", b"null", b"3", b'"text"', b"\xff\xfe{}", b'{"model": "\xff"}', b"\xef\xbb\xbf{}",
    b"[" * 200_000, b'{"a":' * 200_000, b'{"n": ' + b"9" * 50_000 + b"}", b'{"\\ud800": 1}',
    b'{"model": "\\ud800"}', b'{"' + b"x" * 100_000 + b'": 1}',
    b'{"messages": [{"role": "\\ud83d", "content": ""}]}', b'{"messages": {"role": 1}}',
]  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_hostile_bodies_are_refused(path, content):
    response = call(FakeBackend(), path, content=content)
    refusal(response)
    assert len(response.content) < 1000


def test_a_body_has_a_size_and_a_kind():
    assert (
        refusal(call(FakeBackend(), content=b" " * (MAX_CHAT_BODY + 1)), 413)["code"] == "request_too_large"
    )
    response = call(FakeBackend(), content=b"<a/>", headers={"Content-Type": "application/xml; q=1"})
    assert "application/xml" in refusal(response, 415)["message"]
    packed = {"Content-Type": "application/json", "Content-Encoding": "zstd"}
    message = refusal(call(FakeBackend(), content=b"(\xb5/\xfd", headers=packed), 415)["message"]
    assert "no bodies in zstd: send it without Content-Encoding" in message
    kind = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert call(FakeBackend(), content=json.dumps(chat()).encode(), headers=kind).status_code == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not valid JSON"),
        (b'{"model": "\xff"}', "not valid JSON in UTF-8"),
        (b'{"n": ' + b"9" * 5000 + b"}", "a number of too many digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "must be a JSON object"),
    ],
)
def test_a_body_that_cannot_be_read_is_told_why_in_words_of_http(body, said):
    message = refusal(call(FakeBackend(), content=body))["message"]
    assert said in message and "sys." not in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*USUAL, *dict(REFUSED), "prompt", "echo", "best_of"]) | st.text(max_size=5)


@settings(max_examples=150)
@given(st.dictionaries(NAMES, JSON, max_size=5), st.sampled_from(["/v1/chat/completions", "/v1/completions"]))
def test_no_body_is_an_internal_error(fields, path):
    base = {"messages": HELLO} if "chat" in path else {"prompt": "a"}
    response = call(FakeBackend(), path, content=json.dumps({**base, **fields}).encode())
    assert response.status_code in (200, 400, 404)


# -- the field `opensled` -----------------------------------------------------------------------------------------


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
