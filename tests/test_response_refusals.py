"""POST /v1/responses: what is not served is refused by name."""

import pytest

from tests.fake_backend import FakeBackend, refusal
from tests.test_responses import CLOCK, FORM, LAMP, LOGPROBS, ask

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
