"""POST /v1/responses: what is asked of the server, which is what a chat asks for."""

import json

import pytest

from opensled.core.messages import ChatMessage, Guide, Tool, ToolCall
from tests.fake_backend import FakeBackend, call, refusal
from tests.response_cases import CLOCK, FORM, LAMP, LOGPROBS, PATH, SCHEMA, ask, conforms

READ = (Tool("lamp", "a lamp", json.dumps(SCHEMA), True), Tool("clock"))
SAME = [
    (
        {
            "instructions": "Be brief.",
            "input": "Hi",
            "max_output_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.9,
        },
        {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            "max_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.9,
        },
    ),
    (
        {"input": "Hi", "top_k": 3, "seed": 4, "stop": ["a"], "opensled": {"pace": 5, "background": True}},
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "top_k": 3,
            "seed": 4,
            "stop": ["a"],
            "opensled": {"pace": 5, "background": True},
        },
    ),
    (
        {"input": "Hi", "text": {"format": FORM}},
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        },
    ),
    (
        {
            "input": [
                {"role": "user", "content": "Light, please."},
                {"type": "function_call", "call_id": "c", "name": "lamp", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "on"},
            ],
            "tools": [LAMP],
            "tool_choice": {"type": "function", "name": "lamp"},
        },
        {
            "messages": [
                {"role": "user", "content": "Light, please."},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "c", "type": "function", "function": {"name": "lamp", "arguments": "{}"}}
                    ],
                },
                {"role": "tool", "tool_call_id": "c", "content": "on"},
            ],
            "tools": [
                {"type": "function", "function": {key: LAMP[key] for key in LAMP if key != "type"}},
            ],
            "tool_choice": {"type": "function", "function": {"name": "lamp"}},
        },
    ),
]


@pytest.mark.parametrize(("response", "same_chat"), SAME, ids=range(len(SAME)))
def test_a_response_asks_for_what_a_chat_asks_for(response, same_chat):
    backend = FakeBackend()
    assert call(backend, PATH, response).status_code == call(backend, body=same_chat).status_code == 200
    one, other = backend.tasks
    assert one == other


def test_items_in_all_their_forms():
    backend = FakeBackend()
    words = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    said = {"type": "output_text", "text": "c", "annotations": [], "logprobs": []}
    lamp = {"type": "function_call", "id": "fc_1", "status": "completed", "name": "lamp", "arguments": "{}"}
    items = [
        {"type": "message", "role": "developer", "content": "be brief"},
        {"role": "user", "content": words},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [said]},
        {**lamp, "call_id": "1"},
        {**lamp, "call_id": "2"},
        {"type": "function_call_output", "call_id": "1", "output": "on"},
        {"type": "function_call_output", "call_id": "2", "output": words},
        {**lamp, "call_id": "3", "caller": None},
    ]
    assert ask(backend, items).status_code == 200
    calls = [ToolCall(id, "lamp", "{}") for id in "123"]
    assert backend.tasks[0].prompt == (
        ChatMessage("system", "be brief"),
        ChatMessage("user", "ab"),
        ChatMessage("assistant", "c", (calls[0], calls[1])),
        ChatMessage("tool", "on", tool_call_id="1"),
        ChatMessage("tool", "ab", tool_call_id="2"),
        ChatMessage("assistant", "", (calls[2],)),
    )


@pytest.mark.parametrize(
    ("fields", "guide"),
    [
        ({"text": {}}, None),
        ({"text": {"format": {"type": "text"}, "verbosity": "medium"}}, None),
        ({"text": {"format": {"type": "json_object"}}}, Guide("{}")),
        ({"tools": [{"type": "web_search"}]}, None),
        ({"tools": [LAMP, CLOCK]}, Guide("", READ, "auto", "", True)),
        ({"tools": [LAMP, CLOCK], "tool_choice": "none"}, Guide("", READ, "none", "", True)),
        (
            {"tools": [LAMP, CLOCK], "tool_choice": "required", "parallel_tool_calls": False},
            Guide("", READ, "required", "", False),
        ),
    ],
)
def test_forms_reach_the_server(fields, guide):
    backend = FakeBackend()
    assert ask(backend, **fields).status_code == 200 and backend.tasks[0].guide == guide


def test_fields_that_change_nothing_pass():
    usual = {
        "background": False, "truncation": "disabled", "store": False, "service_tier": "auto", "user": "me",
        "safety_identifier": "me", "prompt_cache_key": "k", "previous_response_id": None, "include": [],
        "reasoning": {"effort": "none"}, "tools": [], "metadata": None, "temperature": None, "instructions": "",
    }  # fmt: skip
    backend = FakeBackend()
    reply = ask(backend, **usual)
    assert reply.status_code == 200 and backend.tasks[0].prompt == (ChatMessage("user", "Hi"),)
    conforms(reply.json(), "Response")


# -- refusals -----------------------------------------------------------------------------------------------------


REFUSED = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"), ({"prompt": {"id": "p"}}, "prompt"), ({"nonsense": 1}, "nonsense"),
    ({"messages": ["a"]}, "messages"), ({"n": 2}, "n"), ({"max_tokens": 5}, "max_tokens"), ({"model": 3}, "model"),
    ({"max_output_tokens": 0}, "max_output_tokens"), ({"max_output_tokens": "9"}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"), ({"top_p": -1}, "top_p"), ({"top_k": "1"}, "top_k"),
    ({"instructions": ["a"]}, "instructions"), ({"instructions": "\ud800"}, "instructions"),
    ({"include": "all"}, "include"), ({"include": ["thoughts"]}, "include"),
    ({"include": [LOGPROBS], "tools": [CLOCK]}, "include"), ({"top_logprobs": 2}, "top_logprobs"),
    ({"include": [LOGPROBS], "top_logprobs": 21}, "top_logprobs"), ({"opensled": {"pace": -1}}, "opensled.pace"),
    ({"stream": "yes"}, "stream"), ({"stream_options": 1}, "stream_options"), ({"text": "plain"}, "text"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {**FORM, "a": 1}}}, "text.format.a"),
    ({"response_format": FORM}, "response_format"),
    ({"text": {"format": {**FORM, "schema": 1}}}, "text.format.schema"), ({"tools": LAMP}, "tools"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"), ({"tools": [7]}, "tools[0]"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [LAMP, {**LAMP, "a": 1}]}]}, "tools[0].tools[1].a"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": 7}]}, "tools[0].tools"),
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"), ({"tools": [{"type": 7}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"), ({"tools": [{**LAMP, "a": 1}]}, "tools[0].a"),
    ({"tools": [LAMP, {**LAMP, "strict": False}]}, "tools"),
    ({"tools": [LAMP], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [LAMP], "tool_choice": {"type": "function", "name": "door"}}, "tool_choice"),
    ({"tools": [LAMP], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
    ({"tools": [LAMP], "tool_choice": {"type": "function", "name": "lamp", "a": 1}}, "tool_choice.a"),
    ({"tool_choice": "required"}, "tool_choice"), ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=range(len(REFUSED)))
def test_refuses_by_name(fields, param):
    backend = FakeBackend()
    error = refusal(ask(backend, **fields))
    assert error["param"] == param and param in error["message"] and not backend.tasks


MESSAGE = {"role": "user", "content": "a"}
ITEMS = [
    (None, "input"), ([], "input"), (3, "input"), ("\ud800", "input"), ([1], "input[0]"),
    ([{"content": "a"}], "input[0].role"), ([{"role": "tool", "content": "a"}], "input[0].role"),
    ([{"role": "user"}], "input[0].content"), ([MESSAGE, {"type": "mesage"}], "input[1].type"),
    ([{"type": "item_reference", "id": "a"}], "input[0].type"), ([{"type": "reasoning"}], "input"),
    ([{"type": "function_call", "name": "a", "call_id": 7}], "input[0].call_id"),
    ([{"type": "function_call", "call_id": "a", "name": "f", "arguments": [1]}], "input[0].arguments"),
    ([{"type": "function_call_output", "output": "a", "call_id": 7}], "input[0].call_id"),
    ([{**MESSAGE, "content": [{"type": "input_image", "image_url": "a"}]}], "input[0].content[0].input_image"),
    ([{**MESSAGE, "content": [{"type": "input_file", "file_id": "a"}]}], "input[0].content[0].input_file"),
    ([{**MESSAGE, "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "param"), ITEMS, ids=range(len(ITEMS)))
def test_refuses_items_by_name(value, param):
    error = refusal(ask(FakeBackend(), value))
    assert error["param"] == param and param in error["message"]


def test_what_this_device_cannot_do_is_named():
    assert refusal(ask(FakeBackend(), model="gpt-4"), 404)["param"] == "model"
    assert refusal(ask(FakeBackend(has_chat_template=False)))["param"] == "input"
    plain = FakeBackend(capabilities=())
    assert refusal(ask(plain, text={"format": FORM}))["param"] == "text.format"
    assert refusal(ask(plain, tools=[LAMP]))["param"] == "tools"
