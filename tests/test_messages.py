"""POST /v1/messages: the answer, whole and event by event; errors, keys, counts and models in Anthropic's form."""

import json
from functools import cache

import jsonschema
import pytest

from http_api.app import build_app
from http_api.bodies import MAX_CHAT_BODY
from http_api.exchange import Exchanges
from http_api.guard import Access
from http_api.left_out import IGNORED_HEADER
from http_api.openapi import description
from opensled.core.answer import Chunk
from opensled.core.errors import Unreachable
from opensled.core.images import ImageFacts, TurnImage
from opensled.core.messages import Guide, Tool
from tests.fake_backend import STATS, WORDS, FakeBackend, call, named_events, through
from tests.message_cases import FORM, HI, IGNORED, LAMP, REFUSED, TURNS, called, text, user
from tests.vision_world import DATA, TEXT

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
LAMP_TOOL = Tool("lamp", "a lamp", '{"type": "object", "properties": {"on": {"type": "boolean"}}}')


def ask(backend, path=PATHS[0], headers=None, **fields):
    body = {"model": "tiny", "max_tokens": 9, "messages": [HI], **fields}
    return call(backend, path, content=json.dumps(body).encode(), headers=headers)


def refusal(response, status=400):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    return body["error"]


def task_of(**fields):
    backend = FakeBackend()
    response = ask(backend, **fields)
    assert response.status_code == 200, response.text
    (task,) = backend.tasks
    return task


@pytest.mark.parametrize(("fields", "turns"), TURNS, ids=range(len(TURNS)))
def test_messages_are_read_as_turns(fields, turns):
    assert task_of(**fields).prompt == turns


def test_sampling_and_ends():
    task = task_of(temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["a", "", "b"], stop="c", max_tokens=7)
    params = task.params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.9, 5, 7)
    assert task.stop == ("a", "b", "c") and task.guide is None
    assert task_of().params.temperature == 1 and task_of(max_tokens=None).params.max_tokens == 1024


@pytest.mark.parametrize(
    ("choice", "guide"),
    [
        (None, Guide("", (LAMP_TOOL,), "auto", "", True)),
        ({"type": "auto", "disable_parallel_tool_use": True}, Guide("", (LAMP_TOOL,), "auto", "", False)),
        ({"type": "any"}, Guide("", (LAMP_TOOL,), "required", "", True)),
        ({"type": "tool", "name": "lamp"}, Guide("", (LAMP_TOOL,), "required", "lamp", True)),
        ("any", Guide("", (LAMP_TOOL,), "required", "", True)),
        ({"type": "none"}, Guide("", (LAMP_TOOL,), "none", "", True)),
    ],
)
def test_tools_and_which_must_be_called(choice, guide):
    assert task_of(tools=[LAMP], tool_choice=choice).guide == guide


@pytest.mark.parametrize("fields", [{"output_config": {"format": FORM}}, {"output_format": FORM}])
def test_the_form_of_an_answer(fields):
    assert task_of(**fields).guide == Guide(LAMP_TOOL.parameters)


@pytest.mark.parametrize(("fields", "names"), IGNORED, ids=range(len(IGNORED)))
def test_what_has_no_effect_is_left_out_by_name(fields, names):
    response = ask(FakeBackend(), **fields)
    assert response.status_code == 200, response.text
    assert response.headers[IGNORED_HEADER] == names


def test_a_header_that_asks_for_nothing_is_named():
    response = ask(FakeBackend(), headers={"anthropic-beta": "a-2026", "anthropic-version": "2023-06-01"})
    assert response.headers[IGNORED_HEADER] == "anthropic-beta"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=range(len(REFUSED)))
def test_refuses_by_name(path, fields, named):
    backend = FakeBackend()
    error = refusal(ask(backend, path, **fields))
    assert error["type"] == "invalid_request_error" and named in error["message"] and not backend.tasks


def test_clients_hear_that_no_conversation_is_stored():
    """The official client goes on with all messages then."""
    error = refusal(ask(FakeBackend(), thread={"type": "create"}))
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def test_another_model_is_not_found_and_the_client_s_settings_are_named():
    error = refusal(ask(FakeBackend(), model="claude-sonnet-5"), 404)
    assert error["type"] == "not_found_error"
    for word in ("'tiny'", "ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"):
        assert word in error["message"]


SHOWN = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": TEXT}}


@pytest.mark.parametrize(
    ("messages", "content", "offset"),
    [
        (user(text("a"), SHOWN, text("b")), "ab", 1),
        ([*called([SHOWN])[:2], *user(called([SHOWN])[2]["content"][0], text("What?"))], "What?", 0),
    ],
)
def test_pictures(messages, content, offset):
    backend = FakeBackend(images=ImageFacts(token_id=3, rows=9))
    assert ask(backend, messages=messages).status_code == 200
    last = backend.tasks[0].prompt[-1]
    (placed,) = last.images
    assert (last.role, last.content) == ("user", content)
    assert isinstance(placed, TurnImage) and (placed.offset, placed.image.data) == (offset, DATA)


@pytest.mark.parametrize(
    "source", [{"url": "https://example.com/a.png"}, {"file_id": "f"}, {"data": "!"}], ids=str
)
def test_pictures_that_are_refused(source):
    backend = FakeBackend(images=ImageFacts(token_id=3, rows=9))
    error = refusal(ask(backend, messages=user({"type": "image", "source": source})))
    (field,) = source
    assert (
        f"messages[0].content[0].image.source{'' if field == 'file_id' else '.' + field} " in error["message"]
    )


# -- answers ------------------------------------------------------------------------------------------------------


ARGUMENTS = '{"on": true}'
CALLS = ("Let me see.\n", '<tool_call>\n{"name": "lamp", "argu', f'ments": {ARGUMENTS}}}\n</tool_call>')
USAGE = {
    "input_tokens": 4,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 3,
    "output_tokens": 4,
    "opensled": {"rule": "match", **STATS.figures()},
}


@cache
def described(name):
    document = description(FakeBackend().info)
    schema = {**document["components"]["schemas"][name], "components": document["components"]}
    return jsonschema.Draft202012Validator(schema)


def told(response):
    """The events of a stream, each as it is described."""
    events = named_events(response)
    for event in events:
        described("MessageEvent").validate(event)
    return events


def kinds(events):
    return [event["type"].removeprefix("content_") for event in events]


def joined(events):
    """The message that a client puts together from a stream."""
    message = events[0]["message"]
    for event in events:
        if event["type"] == "content_block_start":
            message["content"].append({**event["content_block"], "json": ""})
        if event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            block["text" if "text" in delta else "json"] += delta.get("text", delta.get("partial_json"))
        if event["type"] == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    for block in message["content"]:
        if given := block.pop("json"):
            block["input"] = json.loads(given)
    return message


def without_ids(message):
    return {**message, "id": None, "content": [{**block, "id": None} for block in message["content"]]}


def test_an_answer():
    reply = ask(FakeBackend()).json()
    described("AnthropicMessage").validate(reply)
    assert reply["id"].startswith("msg_") and reply["role"] == "assistant" and reply["model"] == "tiny"
    assert reply["content"] == [{"type": "text", "text": "".join(WORDS)}]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("end_turn", None) and reply["usage"] == USAGE


@pytest.mark.parametrize("path", [PATHS[0], PATHS[0] + "?beta=true"])
def test_every_event_in_its_order(path):
    events = told(ask(FakeBackend(), path, stream=True))
    assert kinds(events) == [
        "message_start", "block_start", *["block_delta"] * 3, "block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[0]["message"]["content"] == [] and events[0]["message"]["stop_reason"] is None
    assert without_ids(joined(events)) == without_ids(ask(FakeBackend()).json())


def test_a_text_and_a_call():
    reply = ask(FakeBackend(words=CALLS), tools=[LAMP]).json()
    described("AnthropicMessage").validate(reply)
    text, use = reply["content"]
    assert text == {"type": "text", "text": "Let me see.\n"} and use["id"].startswith("toolu_")
    assert (use["name"], use["input"], reply["stop_reason"]) == ("lamp", {"on": True}, "tool_use")
    events = told(ask(FakeBackend(words=CALLS), tools=[LAMP], stream=True))
    assert kinds(events)[4:8] == ["block_start", "block_delta", "block_stop", "message_delta"]
    assert without_ids(joined(events)) == without_ids(reply)


def test_a_call_that_is_cut_off_is_a_text_that_nobody_runs():
    reply = ask(FakeBackend(words=(CALLS[1], 'ments": {"on'), reason="length"), tools=[LAMP]).json()
    assert reply["content"] == [{"type": "text", "text": '{"name": "lamp", "arguments": {"on'}]
    assert reply["stop_reason"] == "max_tokens"


def test_an_answer_without_a_word_has_no_block():
    assert ask(FakeBackend(words=())).json()["content"] == []
    assert kinds(told(ask(FakeBackend(words=()), stream=True))) == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


class Stopped(FakeBackend):
    """Its answers end by a stop string."""

    async def answer(self, task):
        self.tasks.append(task)
        yield Chunk("Well", (40,))
        yield Chunk("", (41,), "stop", STATS, stopped_by="END")


@pytest.mark.parametrize("stream", [False, True])
def test_the_stop_sequence_that_ended_it_is_told(stream):
    response = ask(Stopped(), stop_sequences=["END", "."], stream=stream)
    message = joined(told(response)) if stream else response.json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


def test_a_count_asks_for_an_answer_of_no_tokens():
    backend = FakeBackend(words=(), reason="length")
    assert ask(backend, PATHS[1], stream=True).json() == {"input_tokens": STATS.prompt_tokens}
    (task,) = backend.tasks
    assert task.params.max_tokens == 0 and not task.drafts


@pytest.mark.parametrize("error", [Unreachable("the server is lost"), ValueError("secret")])
def test_an_error_midway_is_an_event(error):
    backend = FakeBackend(error, fail_after=2)
    *events, last = told(ask(backend, stream=True))
    assert kinds(events) == ["message_start", "block_start", "block_delta"]
    assert last["type"] == "error" and "secret" not in last["error"]["message"] and backend.closed == 1


class Away(FakeBackend):
    """Waits for its server before it goes on."""

    async def answer(self, task):
        yield Chunk("a", (40,))
        yield Chunk("", (), waiting=2.0)
        yield Chunk("", (41,), "eos", STATS)


def test_a_ping_while_the_server_is_away():
    app = build_app(Away(), heartbeat=1e-9)
    body = {"model": "tiny", "messages": [HI], "stream": True}
    assert "ping" in kinds(told(through(app, "POST", PATHS[0], json=body)))


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status", "kind"),
    [
        ("POST", PATHS[0], b"{", {}, 400, "invalid_request_error"),
        ("POST", PATHS[0], b" " * (MAX_CHAT_BODY + 1), {}, 413, "request_too_large"),
        ("POST", PATHS[0], b"{}", {"content-type": "text/plain"}, 415, "invalid_request_error"),
        ("GET", PATHS[0], None, {}, 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", b"{}", {}, 404, "not_found_error"),
        ("POST", PATHS[0], b"{}", {"origin": "https://evil.example"}, 403, "permission_error"),
        ("POST", PATHS[1], b"{}", {"x-api-key": "wrong"}, 401, "authentication_error"),
    ],
)
def test_what_no_request_is_read_of_is_refused_in_the_same_form(method, path, content, headers, status, kind):
    keys = ("secret",) if "x-api-key" in headers else ()
    app = Exchanges(build_app(FakeBackend(), Access(keys=keys)))
    response = through(app, method, path, content=content, headers=headers)
    assert refusal(response, status)["type"] == kind
    assert response.json()["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "secret"}, 200),
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "Bearer secret", "x-api-key": "other"}, 200),
        ({"authorization": "Bearer other", "x-api-key": "secret"}, 200),
        ({"x-api-key": "other"}, 401),
        ({"x-api-key": ""}, 401),
        ({}, 401),
    ],
)
def test_either_header_has_the_key(headers, status):
    app = build_app(FakeBackend(), Access(keys=("secret",)))
    for method, path in (("POST", PATHS[0]), ("GET", "/v1/models")):
        body = {"json": {"messages": [HI]}} if method == "POST" else {}
        assert through(app, method, path, headers=headers, **body).status_code == status


def test_models_in_its_form():
    version = {"anthropic-version": "2023-06-01"}
    page = call(FakeBackend(), "/v1/models", method="GET", headers=version).json()
    (model,) = page["data"]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "tiny", "tiny")
    assert (model["type"], model["id"], model["display_name"]) == ("model", "tiny", "tiny")
    assert model["max_input_tokens"] == 1024
    assert call(FakeBackend(), "/v1/models/tiny", method="GET", headers=version).json() == model
    assert call(FakeBackend(), "/v1/models", method="GET").json()["object"] == "list"
