"""POST /v1/messages: what is asked of the server, what is left out by name, and what is refused."""

import json

import pytest

from http_api.bodies import IGNORED_HEADER
from opensled.core.images import ImageFacts, TurnImage
from opensled.core.messages import Guide, Tool
from tests.fake_backend import FakeBackend, call
from tests.message_cases import FORM, HI, IGNORED, LAMP, REFUSED, TURNS, called, text, user
from tests.test_image_requests import DATA, TEXT

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
