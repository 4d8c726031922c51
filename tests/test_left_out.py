"""What clients send without effect is left out by name, and what they remember comes back; what asks is refused."""

import json
from pathlib import Path

import h11
import httpx
import pytest

from http_api.app import build_app
from http_api.effects import ANNOTATIONS as KNOWN_ANNOTATIONS
from http_api.effects import ASKED as KNOWN_ASKED
from http_api.effects import OFF as KNOWN_OFF
from http_api.effects import OFF_OR_UNKNOWN
from http_api.left_out import HEADER, IGNORED_HEADER
from http_api.openapi import description
from tests.fake_backend import HELLO, FakeBackend, call, chat, refusal
from tests.left_out_cases import (
    ANNOTATIONS,
    ASKED,
    ASKED_OF,
    CUT_ARGUMENTS,
    DEFAULTS,
    EMPTY,
    HISTORIES,
    ITEMS,
    NO_TEXT,
    OFF,
    OPTIONS,
    PROMPTS,
    SAMPLING,
    SPELLED,
    UNNAMED,
    WITHOUT_IDS,
    answered,
    as_item,
    called,
)
from tests.loops import in_loop

CHATS = ("/v1/chat/completions", "/api/chat")
# By path, the values of `EMPTY` that are refused, and of which fields. Fields that are not there take all of them.
TABLE = Path(__file__).parent / "refused_when_empty.json"
OLLAMA = (
    "messages prompt system template context images raw options format think truncate shift keep_alive stream"
)


def ask(path, lenient=False, **fields):
    backend = FakeBackend()
    body = {**PROMPTS[path], "stream": False, **fields}
    return backend, call(backend, path, body, lenient=lenient)


def taken(path, **fields):
    """The one task of a request that is answered, and what its header names."""
    backend, response = ask(path, **fields)
    assert response.status_code == 200, response.text
    return backend.tasks[0], response.headers.get(IGNORED_HEADER, "")


@pytest.mark.parametrize("path", PROMPTS)
def test_annotations_are_left_out_and_named(path):
    plain, _ = taken(path)
    for fields in ANNOTATIONS:
        task, header = taken(path, **fields)
        assert task == plain
        assert header == ", ".join(fields) or (path.startswith("/api") and "keep_alive" in fields)


@pytest.mark.parametrize("path", PROMPTS)
def test_what_is_off_or_null_changes_and_tells_nothing(path):
    plain, _ = taken(path)
    for fields in OFF:
        assert taken(path, **fields) == (plain, ""), fields


@in_loop
async def refused_when_empty(path):
    """What the API refuses at this path, as the table has it."""
    schemas = description(FakeBackend().info)["components"]["schemas"]
    kind = {
        "chat/completions": "ChatRequest",
        "completions": "CompletionRequest",
        "responses": "ResponseRequest",
        "messages": "MessageRequest",
    }
    own = schemas[kind[path[4:]]]["properties"] if path.startswith("/v1") else OLLAMA.split()
    names = {
        "model",
        *own,
        *KNOWN_ANNOTATIONS,
        *KNOWN_ASKED,
        *KNOWN_OFF,
        *OFF_OR_UNKNOWN,
        "guided_json",
        "unheard_of",
    }
    refused = {}
    transport = httpx.ASGITransport(build_app(FakeBackend()))
    async with httpx.AsyncClient(transport=transport, base_url="http://edge") as client:
        for name in sorted(names):
            values = []
            for value in EMPTY:
                response = await client.post(path, json={**PROMPTS[path], name: value})
                assert response.status_code in (200, 400, 404)
                if response.status_code != 200:
                    assert name in response.text or (name, value) == ("model", 0)
                    values.append(json.dumps(value))
            if values:
                refused.setdefault(" ".join(values), []).append(name)
    return refused


@pytest.mark.parametrize("path", PROMPTS)
def test_each_field_takes_what_is_empty_where_that_asks_for_nothing(path):
    assert refused_when_empty(path) == json.loads(TABLE.read_text())[path]


@pytest.mark.parametrize(("path", "fields"), [(path, each) for path in DEFAULTS for each in DEFAULTS[path]])
def test_bodies_with_every_field_at_its_default_change_nothing(path, fields):
    assert taken(path, **fields)[0] == taken(path)[0]


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize(("fields", "name", "value"), SAMPLING)
def test_values_that_mean_off_are_off(path, fields, name, value):
    task, _ = taken(path, **({"options": fields} if path.startswith("/api") else fields))
    assert getattr(task if name == "stop" else task.params, name) == value


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize(("options", "name", "value"), OPTIONS)
def test_options_of_ollama_s_clients(path, options, name, value):
    assert getattr(taken(path, options=options)[0].params, name) == value


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "max_tokens"), ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/completions", "max_tokens"), ("/v1/responses", "max_output_tokens"),
    ],
)  # fmt: skip
def test_no_limit_is_the_end_of_the_context(path, name):
    assert taken(path, **{name: -1})[0].params.max_tokens == 1024


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("path", PROMPTS)
def test_what_is_asked_for_is_never_left_out(path, lenient):
    for fields, name in [*ASKED, *ASKED_OF[path]]:
        backend, response = ask(path, lenient, **fields)
        assert response.status_code == 400 and not backend.tasks, fields
        error = response.json()["error"]
        told = error if isinstance(error, str) else error["message"]
        assert error["param"] == name if "param" in error else name in told


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize(("turns", "text", "arguments"), HISTORIES)
def test_a_chat_comes_back_as_it_was_kept(path, turns, text, arguments):
    turn = taken(path, messages=turns)[0].prompt[1]
    assert (turn.role, turn.content) == ("assistant", text)
    assert [each.arguments for each in turn.tool_calls] == ([] if arguments is None else [arguments])


@pytest.mark.parametrize("content", NO_TEXT, ids=repr)
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_a_turn_may_have_no_text(role, content):
    turns = [
        {"role": role, "content": content},
        {"role": "user", "content": ["Hi", {"type": "text", "text": "!"}]},
    ]
    for path in CHATS:
        read = taken(path, messages=turns)[0].prompt
        assert [turn.content for turn in read] == ["", "Hi!"]
    if role not in ("tool", "function"):
        assert [turn.content for turn in taken("/v1/responses", input=turns)[0].prompt] == ["", "Hi!"]
    item = {"type": "function_call_output", "call_id": "c", "output": content}
    assert taken("/v1/responses", input=[item])[0].prompt[0].content == ""


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize(("turns", "expected"), UNNAMED)
def test_results_find_their_calls_without_ids(path, turns, expected):
    prompt = taken(path, messages=turns)[0].prompt
    read = [(turn.role, [each.id for each in turn.tool_calls], turn.tool_call_id) for turn in prompt]
    assert read == expected


def test_results_of_a_response_find_their_calls_without_ids():
    call = {"type": "function_call", "name": "pump", "arguments": ""}
    result = {"type": "function_call_output", "output": "x"}
    prompt = taken("/v1/responses", input=[call, {**call, "call_id": None}, result, result])[0].prompt
    assert [each.id for each in prompt[0].tool_calls] == [turn.tool_call_id for turn in prompt[1:]]


def test_what_earlier_turns_have_besides_is_named_once():
    turns = answered(parsed="a", id="m1") * 300
    assert taken(CHATS[0], messages=turns)[1] == "messages[].parsed, messages[].id"


@pytest.mark.parametrize(("items", "turns"), ITEMS)
def test_items_come_back_as_they_were_kept(items, turns):
    user = {"role": "user", "content": "Hi"}
    prompt = taken("/v1/responses", input=[user, *items, user])[0].prompt
    assert [(turn.role, turn.content) for turn in prompt[1:-1]] == turns


@pytest.mark.parametrize("arguments", CUT_ARGUMENTS, ids=range(len(CUT_ARGUMENTS)))
def test_arguments_that_are_no_object_are_told_as_they_are(arguments):
    for path in CHATS:
        (call,) = taken(path, messages=called(arguments))[0].prompt[1].tool_calls
        assert json.loads(call.arguments) == {"input": arguments}


@pytest.mark.parametrize("arguments", [[1], 3])
def test_a_fault_in_a_call_names_its_field(arguments):
    where = "messages[1].tool_calls[0].function.arguments"
    assert refusal(ask(CHATS[0], messages=called(arguments))[1])["param"] == where
    assert where in ask(CHATS[1], messages=called(arguments))[1].json()["error"]
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    assert refusal(ask("/v1/responses", input=[item])[1])["param"] == "input[0].arguments"


@pytest.mark.parametrize(("turns", "calls", "results"), WITHOUT_IDS)
def test_calls_without_ids_are_numbered_and_results_find_them(turns, calls, results):
    for path, field in ((CHATS[0], "messages"), (CHATS[1], "messages"), ("/v1/responses", "input")):
        given = [as_item(turn) for turn in turns] if field == "input" else turns
        prompt = taken(path, **{field: [{"role": "user", "content": "Hi"}, *given]})[0].prompt
        assert [call.id for turn in prompt for call in turn.tool_calls] == calls
        assert [turn.tool_call_id for turn in prompt if turn.role == "tool"] == results


@pytest.mark.parametrize(("path", "fields", "name"), SPELLED)
def test_what_no_grammar_holds_is_named_as_the_client_spells_it(path, fields, name):
    assert ask(path, **fields)[1].headers[HEADER] == name


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields", "name"), SPELLED)
def test_tools_that_only_the_server_finds_too_slow_are_named_too(path, fields, name, stream):
    backend = FakeBackend()
    backend.coarse_tools = ("slow", "a\r\nSet-Cookie: b")
    many = {"n": 2} if path == "/v1/chat/completions" else {}
    response = call(backend, path, {**PROMPTS[path], **fields, **many, "stream": stream})
    assert response.headers[HEADER] == f"{name}, tools (slow), tools (a??Set-Cookie: b)"


def test_choices_of_neighbouring_seeds_share_none():
    drawn = []
    for seed in range(5, 9):
        backend, _ = ask(CHATS[0], seed=seed, n=4)
        drawn += [task.params.seed for task in backend.tasks]
    assert len(set(drawn)) == 16 and drawn[::4] == [5, 6, 7, 8]
    again, _ = ask(CHATS[0], seed=5 + 2**64, n=4)
    assert [task.params.seed for task in again.tasks] == drawn[:4]


def test_figures_while_streaming_are_an_annotation():
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": True}
    _, response = ask(CHATS[0], stream=True, stream_options=options)
    assert response.status_code == 200
    named = response.headers[IGNORED_HEADER]
    assert named == "stream_options.continuous_usage_stats, stream_options.include_obfuscation"
    assert taken(CHATS[0], stream_options={"include_usage": True})[1] == "stream_options"


def test_an_unknown_field_is_refused_with_the_way_out():
    error = refusal(ask(CHATS[0], unheard_of=1)[1])
    assert error["param"] == "unheard_of" and "--lenient" in error["message"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"), ("/v1/v1/completions", "/v1/completions"),
        ("/api/v1/responses", "/v1/responses"), ("/completions/", "/v1/completions"),
        ("/v1/api/generate", "/api/generate"), ("/api/chat/completions", "/v1/chat/completions"),
    ],
)  # fmt: skip
def test_a_wrong_base_url_is_forgiven(path, meant):
    found, right = (call(FakeBackend(), each, {"model": 3}) for each in (path, meant))
    assert (found.status_code, found.json()) == (400, right.json())


@pytest.mark.parametrize("path", [*PROMPTS, "/api/tags", "/health", "/v1/models", "/v1/models/fake/target"])
def test_a_slash_too_many_is_forgiven(path):
    head, _, tail = path.rpartition("/")
    method = "POST" if path in PROMPTS else "GET"
    right = call(FakeBackend(), path, {"model": 3}, method=method)
    for spelled in (f"{path}/", f"{path}//", f"{path}/?", *([f"{head}//{tail}"] if head else [])):
        found = call(FakeBackend(), spelled, {"model": 3}, method=method)
        assert (found.status_code, list(found.json())) == (right.status_code, list(right.json())), spelled


@pytest.mark.parametrize("name", [" ", "a ", " a", "\t", "", "\x7f", "é "])
def test_a_name_of_any_letters_fits_a_header(name):
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, name: 1}
    found = call(FakeBackend(), "/v1/chat/completions", body, lenient=True)
    assert found.status_code == 200
    h11.Response(status_code=200, headers=[(IGNORED_HEADER, found.headers[IGNORED_HEADER])])


# -- with `--lenient` ---------------------------------------------------------------------------------------------


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


# -- requests of real clients -------------------------------------------------------------------------------------


REQUESTS = json.loads(Path(__file__).with_name("recorded_requests.json").read_text("utf-8"))


@pytest.mark.parametrize("recorded", REQUESTS, ids=lambda recorded: recorded["client"])
def test_a_recorded_request_is_answered(recorded):
    backend = FakeBackend()
    kind = recorded.get("type", "application/json")  # "" = the client names none
    headers = {"Content-Type": kind} if kind else {}
    answer = call(backend, recorded["path"], content=json.dumps(recorded["body"]).encode(), headers=headers)
    assert answer.status_code == 200, answer.text
    assert len(backend.tasks) == recorded["answers"]
    assert answer.headers.get(IGNORED_HEADER, "") == recorded.get("left_out", "")
