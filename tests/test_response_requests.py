"""POST /v1/responses: what is asked of the server, which is what a chat asks for."""

import json

import pytest

from opensled.core.messages import ChatMessage, Guide, Tool, ToolCall
from tests.fake_backend import FakeBackend, call
from tests.test_responses import CLOCK, FORM, LAMP, PATH, SCHEMA, ask, conforms

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
