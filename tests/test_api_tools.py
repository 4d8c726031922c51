"""Answers of a given form: what is asked of the server, and calls read back out of the text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.calls import CallReader
from opensled.core.errors import InvalidRequest
from opensled.core.messages import Guide, Tool
from opensled.text.call_forms import TAGGED as IN_TAGS
from tests.call_families import text_and_calls
from tests.fake_backend import FakeBackend, call, chat, events, refusal

SCHEMA = {"type": "object", "properties": {"on": {"type": "boolean"}}}
LAMP = {"type": "function", "function": {"name": "lamp", "description": "a lamp", "parameters": SCHEMA}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [LAMP, CLOCK]
READ = (Tool("lamp", "a lamp", json.dumps(SCHEMA)), Tool("clock"))
ANSWER = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}


def named(name):
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("fields", "guide"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Guide("{}")),
        ({"response_format": ANSWER}, Guide(json.dumps(SCHEMA), strict=True)),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, Guide("{}")),
        ({"tools": TOOLS}, Guide("", READ, "auto", "", True)),
        ({"tools": TOOLS, "tool_choice": "none"}, Guide("", READ, "none", "", True)),
        ({"tools": TOOLS, "tool_choice": "required"}, Guide("", READ, "required", "", True)),
        (
            {"tools": TOOLS, "tool_choice": named("clock"), "parallel_tool_calls": False},
            Guide("", READ, "required", "clock", False),
        ),
        (
            {"tools": TOOLS, "response_format": ANSWER},
            Guide(json.dumps(SCHEMA), READ, "auto", "", True, True),
        ),
        ({"tools": [], "tool_choice": "auto"}, None),
    ],
)
def test_what_reaches_the_server(fields, guide):
    backend = FakeBackend()
    assert call(backend, body=chat(**fields)).status_code == 200
    assert backend.tasks[0].guide == guide


REFUSED = [
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": [1]}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"a": float("inf")}}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"a": "\ud800"}}}},
        "response_format.json_schema.schema",
    ),
    ({"tools": LAMP}, "tools"),
    ({"tools": [LAMP, {"name": "lamp"}]}, "tools"),
    ({"tools": [{"type": 7}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "lamp", "nonsense": 1}}]}, "tools[0].function.nonsense"),
    ({"tools": [{"type": "function", "function": {"name": "lamp", "parameters": 1}}]}, "tools[0].function.parameters"),
    ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": named("door")}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": named("lamp")}, "tool_choice"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=range(len(REFUSED)))
def test_refuses_by_name(fields, param):
    error = refusal(call(FakeBackend(), content=json.dumps(chat(**fields)).encode()))
    assert error["param"] == param and param in error["message"]


@pytest.mark.parametrize(
    "fields", [{"tools": TOOLS}, {"response_format": ANSWER}], ids=lambda f: next(iter(f))
)
def test_a_server_without_guides_is_named(fields):
    error = refusal(call(FakeBackend(capabilities=()), body=chat(**fields)))
    assert error["param"] == next(iter(fields)) and error["code"] == "unsupported"


def test_what_the_server_cannot_guide_is_refused_with_its_words():
    backend = FakeBackend(InvalidRequest("no such keyword", "response_format"), fail_after=0)
    error = refusal(call(backend, body=chat(response_format=ANSWER)))
    assert error["param"] == "response_format" and error["message"] == "no such keyword"


BARE = '{"name": "lamp", "arguments": {"on": true, "note": "a } \\" {"}}'
TAGGED = f"<tool_call>\n{BARE}\n</tool_call>"
SECOND = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
ARGUMENTS = '{"on": true, "note": "a } \\" {"}'
LAMP_CALL, CLOCK_CALL = ("lamp", ARGUMENTS), ("clock", "{}")
ANSWERS = [
    ("It is on.", "It is on.", []),
    ("", "", []),
    (BARE, "", [LAMP_CALL]),
    (f" \n{BARE}\n", "", [LAMP_CALL]),
    ('{"name":"clock","arguments":{}}', "", [CLOCK_CALL]),
    (TAGGED, "", [LAMP_CALL]),
    (f"{TAGGED}\n{SECOND}", "", [LAMP_CALL, CLOCK_CALL]),
    (f"Let me see.\n{TAGGED}\n{SECOND}\n", "Let me see.\n", [LAMP_CALL, CLOCK_CALL]),
    (f"a < b <tool {SECOND}", "a < b <tool ", [CLOCK_CALL]),
    ('{"name": "door", "arguments": {}}', '{"name": "door", "arguments": {}}', []),
    ('{"answer": 1}', '{"answer": 1}', []),
    ('<tool_call>\n{"name": "door"}', '<tool_call>\n{"name": "door"}', []),
    ('{"name": "la', '{"name": "la', []),
    ('<tool_call>\n{"name": "la', '<tool_call>\n{"name": "la', []),
    ('{"name": "lamp", "arguments": {"on', "", [("lamp", '{"on')]),
    ('<tool_call>\n{"name": "lamp", "arguments": {"on', "", [("lamp", '{"on')]),
    ("  <tool", "  <tool", []),
    ("<tool_call>", "<tool_call>", []),
    (" \n<tool_call>", " \n<tool_call>", []),
    (" \n<tool_call>never mind", " \n<tool_call>never mind", []),
    (f" \n{TAGGED}", "", [LAMP_CALL]),
    ("{", "{", []),
]


def understood(parts):
    return text_and_calls(CallReader(READ, IN_TAGS), parts)


@pytest.mark.parametrize(("text", "content", "calls"), ANSWERS, ids=range(len(ANSWERS)))
def test_calls_are_read_out_of_the_text_however_it_is_cut(text, content, calls):
    assert understood([text]) == (content, calls)
    assert understood(list(text)) == (content, calls)


@given(st.data())
def test_any_cut_reads_the_same(data):
    text, content, calls = data.draw(st.sampled_from(ANSWERS))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)])]
    assert understood(parts) == (content, calls)


@given(
    st.lists(
        st.sampled_from(["<tool_call>", "</tool_call>", *'{}"<tool_cal>/ \nnamergus:,lp\\']), max_size=40
    ).map("".join)
)
def test_no_text_is_lost_that_is_no_call(text):
    content, calls = understood(list(text))
    assert calls or content == text


def answer(words, stream=False, reason="eos", **fields):
    backend = FakeBackend(words=tuple(words), reason=reason)
    return call(backend, body=chat(tools=TOOLS, stream=stream, **fields))


def test_a_message_with_calls():
    choice = answer([TAGGED, "\n", SECOND]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    calls = choice["message"]["tool_calls"]
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in calls] == [LAMP_CALL, CLOCK_CALL]
    assert len({c["id"] for c in calls}) == 2 and all(c["id"].startswith("call_") for c in calls)


def test_a_message_without_calls():
    choice = answer(["It ", "is on."]).json()["choices"][0]
    assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]


def test_tools_that_may_not_be_called_leave_text_alone():
    choice = answer([BARE], tool_choice="none").json()["choices"][0]
    assert choice["message"]["content"] == BARE and choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("words", "reason", "told"),
    [
        (BARE, "stop", "tool_calls"),
        (BARE[:40], "stop", "stop"),  # a stop string within the arguments
        (BARE[:40], "eos", "stop"),  # a draft model alone keeps to no grammar
        (BARE.replace("true", "NaN"), "eos", "stop"),
        (BARE.replace("true", "yes"), "eos", "stop"),
        (BARE, "length", "length"),
        (BARE[:40], "length", "length"),
        (TAGGED + "\n" + SECOND[:-15], "stop", "stop"),  # in the second of two calls: its arguments
        (TAGGED + "\n" + SECOND[:20], "stop", "stop"),  # or its name
    ],
)
def test_only_whole_calls_are_a_reason(words, reason, told):
    assert answer([words], reason=reason).json()["choices"][0]["finish_reason"] == told
    last = json.loads(events(answer(list(words), True, reason))[-2])["choices"][0]
    assert last["finish_reason"] == told


def test_tools_that_are_no_functions_are_left_out_by_name():
    backend = FakeBackend()
    answer = call(backend, body=chat(tools=[{"type": "custom", "custom": {"name": "a"}}, CLOCK]))
    assert backend.tasks[0].guide.tools == (Tool("clock"),)
    assert answer.headers["OpenSLED-Ignored"] == "tools[0] (custom)"


def test_calls_are_streamed_by_name_and_then_piece_by_piece():
    *chunks, done = events(answer(list(TAGGED + "\n" + SECOND), stream=True))
    assert done == "[DONE]"
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert choices[-1]["finish_reason"] == "tool_calls"
    pieces = [piece for choice in choices for piece in choice["delta"].get("tool_calls", ())]
    starts = [piece for piece in pieces if "id" in piece]
    assert [(s["index"], s["function"]["name"], s["type"]) for s in starts] == [
        (0, "lamp", "function"),
        (1, "clock", "function"),
    ]
    assert len(pieces) > 20, "arguments come as they are written"
    written = {0: "", 1: ""}
    for piece in pieces:
        written[piece["index"]] += piece["function"]["arguments"]
    assert written == {0: ARGUMENTS, 1: "{}"}
    assert all(not choice["delta"].get("content") for choice in choices)


def test_what_the_grammar_leaves_out_is_named_in_a_header_and_with_strict_refused():
    unique = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    name = "tools[0].function.parameters.properties.tags.uniqueItems"
    tool = {"name": "srv:ns/save.all", "parameters": unique}
    answer = call(FakeBackend(), body=chat(tools=[{"type": "function", "function": tool}]))
    assert (answer.status_code, answer.headers["OpenSLED-Not-In-Grammar"]) == (200, name)
    refused = call(
        FakeBackend(), body=chat(tools=[{"type": "function", "function": {**tool, "strict": True}}])
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
