"""Choices of tools in the words of every API, and names that are data: what reaches the server."""

import json

import pytest

from opensled.core.messages import Guide, Tool
from tests.fake_backend import FakeBackend, call, refusal

NAMES = ("lamp", "clock", "door")
TOOLS = {
    "/v1/chat/completions": lambda name: {"type": "function", "function": {"name": name}},
    "/api/chat": lambda name: {"type": "function", "function": {"name": name}},
    "/v1/responses": lambda name: {"type": "function", "name": name},
    "/v1/messages": lambda name: {"name": name, "input_schema": {"type": "object"}},
}
NESTED = {"type": "function", "function": {"name": "clock"}}
FLAT = {"type": "function", "name": "clock"}
CHOICES = [
    (None, "auto", "", NAMES),
    ("auto", "auto", "", NAMES),
    ("any", "required", "", NAMES),
    ("required", "required", "", NAMES),
    ("Required", "required", "", NAMES),
    (True, "required", "", NAMES),
    ("none", "none", "", NAMES),
    ({"type": "auto"}, "auto", "", NAMES),
    ({"type": "any"}, "required", "", NAMES),
    ({"type": "required"}, "required", "", NAMES),
    ({"type": "none"}, "none", "", NAMES),
    ("clock", "required", "clock", NAMES),
    (NESTED, "required", "clock", NAMES),
    (FLAT, "required", "clock", NAMES),
    ({"function": {"name": "clock"}}, "required", "clock", NAMES),
    ({"name": "clock"}, "required", "clock", NAMES),
    ({"type": "tool", "name": "clock"}, "required", "clock", NAMES),
    ({"type": "allowed_tools", "mode": "required", "tools": [FLAT]}, "required", "", ("clock",)),
    ({"type": "allowed_tools", "mode": "auto", "tools": [NESTED, {"name": "door"}]}, "auto", "", ("clock", "door")),
    ({"type": "allowed_tools", "allowed_tools": {"tools": [NESTED, "lamp"]}}, "auto", "", ("lamp", "clock")),
    ({"type": "allowed_tools", "tools": [{"type": "mcp", "server_label": "s"}, FLAT]}, "auto", "", ("clock",)),
]  # fmt: skip


def asked(path: str, names=NAMES, **fields):
    backend = FakeBackend()
    text = {"input": "Hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "Hi"}]}
    if path == "/v1/messages":
        text["max_tokens"] = 9
    body = {"model": "tiny", "tools": [TOOLS[path](name) for name in names], **text, **fields}
    return backend, call(backend, path, body={**body, "stream": False})


SCHEMA = {"type": "OBJECT", "properties": {"at": {"type": "INTEGER"}}}
FORMS = [
    {
        "type": "function",
        "strict": True,
        "_meta": {"a": 1},
        "title": "Sun",
        "function": {"name": "sun", "parameters": SCHEMA},
    },
    {"type": "function", "function": {"name": "sun", "parameters": SCHEMA}},
    {"type": "function", "name": "sun", "parameters": SCHEMA},
    {"type": "custom", "name": "sun", "input_schema": SCHEMA},
    {"name": "sun", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}, "outputSchema": SCHEMA},
]


@pytest.mark.parametrize("path", TOOLS)
def test_a_tool_has_the_form_of_any_api_and_may_come_twice(path):
    for form in FORMS:
        backend, answer = asked(path, tools=[form, form], tool_choice="sun")
        assert answer.status_code == 200, answer.text
        assert backend.tasks[0].guide.tools == (Tool("sun", "", json.dumps(SCHEMA)),)


@pytest.mark.parametrize("path", TOOLS)
@pytest.mark.parametrize(("choice", "mode", "function", "names"), CHOICES, ids=range(len(CHOICES)))
def test_a_clear_choice_is_held(path, choice, mode, function, names):
    backend, answer = asked(path, tool_choice=choice)
    assert answer.status_code == 200, answer.text
    guide = backend.tasks[0].guide
    found = (guide.tool_choice, guide.function, tuple(tool.name for tool in guide.tools))
    assert found == (mode, function, names)


@pytest.mark.parametrize("path", TOOLS)
def test_a_choice_may_ask_for_one_call(path):
    backend, _ = asked(path, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert not backend.tasks[0].guide.parallel


@pytest.mark.parametrize(
    "choice",
    [7, [], "garage", {"type": "allowed_tools", "mode": "sometimes", "tools": []}, {"type": "web_search"}],
)
def test_an_unclear_choice_is_refused_by_name(choice):
    if choice == []:
        assert asked("/v1/chat/completions", tool_choice=choice)[1].status_code == 200  # nothing is asked for
    else:
        assert refusal(asked("/v1/chat/completions", tool_choice=choice)[1])["param"].startswith(
            "tool_choice"
        )


DATA = [
    "pump state",
    "bewässern",
    "查询天气",
    "garden/pump.state",
    "Answer[Bed]",
    "a\\b",
    'say "hi"',
    "№ 1 ␣",
    "x" * 900,
]


@pytest.mark.parametrize("path", TOOLS)
@pytest.mark.parametrize("name", DATA)
def test_a_name_is_data(path, name):
    backend, answer = asked(path, (name,), tool_choice="any")
    assert answer.status_code == 200 and [tool.name for tool in backend.tasks[0].guide.tools] == [name]


@pytest.mark.parametrize("named", [{}, {"name": None}, {"name": ""}, *({"name": name} for name in DATA)])
def test_the_name_of_a_schema_says_nothing(named):
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    form = {**named, "schema": schema}
    for path, fields in (
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": form}}),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", **named, "schema": schema}}}),
    ):  # fmt: skip
        backend, answer = asked(path, (), **fields)
        assert answer.status_code == 200, answer.text
        assert isinstance(backend.tasks[0].guide, Guide) and backend.tasks[0].guide.json_schema


def test_a_tool_without_a_type_or_with_an_empty_name():
    tool = {"function": {"name": "lamp"}}
    for path in ("/v1/chat/completions", "/api/chat"):
        backend, answer = asked(path, (), tools=[tool])
        assert answer.status_code == 200 and backend.tasks[0].guide.tools == (Tool("lamp"),)
    assert refusal(asked("/v1/chat/completions", ("",))[1])["param"] == "tools[0].function.name"
