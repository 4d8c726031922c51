"""JSON made of a fuzzer's decisions: bodies of requests with known fields and any values, and changes to a document."""

import json
from collections.abc import Mapping
from typing import Any

from tests.fake_backend import HELLO, USUAL
from tests.fuzz.choices import NUMBERS, Choices

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
COMMON: dict[str, Any] = {
    **USUAL, "stream": True, "stop": ["a"], "seed": 1, "temperature": 0.5, "top_p": 0.5, "top_k": 3, "n": 2,
    "max_tokens": 5, "max_completion_tokens": 5, "logit_bias": {"5": 1}, "stop_token_ids": [3], "ignore_eos": True,
    "stream_options": {"include_usage": True}, "presence_penalty": 0.5,
    "frequency_penalty": -0.5, "repetition_penalty": 1.1, "min_p": 0.1, "enable_thinking": False, "cache_prompt": True,
    "chat_template_kwargs": {"enable_thinking": False}, "guided_json": None, "structured_outputs": {}, "suffix": "",
    "response_format": {"type": None}, "unheard_of": "",
}  # fmt: skip
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"}}
SHOWN = {"role": "user", "content": [PICTURE, {"type": "text", "text": "a"}]}
CALL = {"name": "f", "arguments": "{}"}
OLD_TURNS = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": None, "function": CALL}],
        "reasoning_content": "a",
    },
    {"role": "tool", "content": ["a", {}, {"type": "text", "text": None}]},
    {"role": "assistant", "function_call": CALL, "parsed": {}},
    {"role": "function", "name": "f", "content": ""},
]
CHAT = {
    **COMMON, "messages": [*HELLO, SHOWN, *OLD_TURNS], "logprobs": True, "top_logprobs": 2, "tools": [TOOL],
    "tool_choice": "auto",
    "response_format": SCHEMA, "parallel_tool_calls": True,
}  # fmt: skip
RESPONSE = {
    "input": [
        *HELLO,
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "a"},
        {"type": "reasoning", "summary": []},
        {"type": "custom_tool_call", "name": "f", "input": None},
        {"type": "custom_tool_call_output", "output": ["a"]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
    ],
    "instructions": "a", "stream": True, "stream_options": {"include_obfuscation": False}, "temperature": 0.5,
    "top_p": 0.5, "top_k": 3, "max_output_tokens": 5, "stop": ["a"], "metadata": {"a": "b"}, "store": False,
    "tools": [{**TOOL["function"], "type": "function"}], "tool_choice": {"type": "function", "name": "f"},
    "parallel_tool_calls": False, "text": {"format": {**SCHEMA["json_schema"], "type": "json_schema"}},
    "include": ["message.output_text.logprobs"], "top_logprobs": 2, "background": False,
    "truncation": "disabled", "reasoning": {"effort": "none"}, "opensled": {"pace": 5},
}  # fmt: skip
CALLED_TOOL = {"type": "tool_use", "id": "a", "name": "f", "input": {"a": [1, "b"]}}
RESULT = {
    "type": "tool_result",
    "tool_use_id": "a",
    "content": [{"type": "text", "text": "b"}],
    "is_error": True,
}
INLINE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
MESSAGE: dict[str, Any] = {
    "messages": [
        *HELLO,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "signature": "b"}, CALLED_TOOL]},
        {"role": "user", "content": [RESULT, {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": [INLINE]},
    ],
    "system": [{"type": "text", "text": "a"}], "stream": True, "max_tokens": 5, "temperature": 0.5, "top_p": 0.5,
    "top_k": 3, "stop_sequences": ["a"], "metadata": {"user_id": "a"}, "thinking": {"type": "adaptive"},
    "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": {}}, {"type": "web_search_20250305"}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}, "container": None,
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "mcp_servers": [], "context_management": {"edits": []}, "thread": None, "opensled": {"pace": 5},
}  # fmt: skip
PAGE_CHAT = {
    **CHAT, "messages": HELLO, "n": 1, "stop": [], "opensled": {"pace": 5, "background": False, "drafts": False},
}  # fmt: skip
PAGE_SWITCH = {"tenant": "local", "device": "kitchen", "drafting": False}
COMPLETION = {
    **COMMON,
    "prompt": "Hi",
    "logprobs": 2,
    "echo": True,
    "prompt_logprobs": 1,
    "best_of": 1,
    "suffix": "",
}

OPTIONS = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 3, "seed": 1, "num_predict": 5, "stop": ["a"], "num_ctx": 2048,
    "repeat_penalty": 1.0, "mirostat": 0, "presence_penalty": 0,
}  # fmt: skip
OLLAMA: dict[str, Any] = {
    "stream": True, "format": {"type": "object"}, "options": OPTIONS, "keep_alive": "5m", "think": False,
    "logprobs": True, "top_logprobs": 2, "truncate": False, "shift": False,
}  # fmt: skip
CALLED = {"id": "a", "function": {"index": 0, "name": "f", "arguments": {"a": [1, "b"]}}}
OLLAMA_TURNS = [
    *HELLO,
    {"role": "assistant", "content": "", "thinking": "a", "tool_calls": [CALLED]},
    {"role": "tool", "content": "1", "tool_name": "f", "images": []},
]
OLLAMA_CHAT = {**OLLAMA, "messages": OLLAMA_TURNS, "tools": [TOOL]}
OLLAMA_GENERATE = {
    **OLLAMA, "prompt": "Hi", "system": "a", "raw": False, "suffix": "", "template": "", "context": [], "images": [],
}  # fmt: skip


def body(choose: Choices, known: Mapping[str, Any]) -> bytes:
    """A request: mostly one that is answered, with a few fields at any value; seldom bytes that are no JSON."""
    if choose.byte() > 240:
        return choose.rest()
    request: dict[str, Any] = {"model": "tiny"}
    request |= {name: known[name] for name in ("messages", "prompt", "input") if name in known}
    for _ in range(choose.byte() % 6):
        name = choose.pick(sorted(known))
        kind = choose.byte()
        request[name] = (
            known[name] if kind < 100 else changed(known[name], choose) if kind < 180 else value(choose)
        )
    if choose.byte() > 250:
        request[choose.text()] = value(choose)
    return encoded(request)


def changed_json(document: Any, choose: Choices) -> bytes:
    for _ in range(1 + choose.byte() % 3):
        document = changed(document, choose)
    return encoded(document)


def changed(document: Any, choose: Choices) -> Any:
    """A document with one thing in it changed, wherever the decisions lead."""
    if isinstance(document, dict) and document and choose.byte() < 230:
        name = choose.pick(sorted(document))
        if choose.byte() > 240:
            return {key: document[key] for key in document if key != name}
        return {**document, name: changed(document[name], choose)}
    if isinstance(document, list) and document and choose.byte() < 230:
        at = choose.below(len(document))
        if choose.byte() > 240:
            return document[:at] + document[at + 1 :]
        return [*document[:at], changed(document[at], choose), *document[at + 1 :]]
    return value(choose)


def value(choose: Choices, depth: int = 3) -> Any:
    """Any JSON value, and what Python's reader takes besides."""
    kind = choose.byte() % (9 if depth else 7)
    if kind == 7:
        return [value(choose, depth - 1) for _ in range(choose.byte() % 4)]
    if kind == 8:
        return {choose.text(): value(choose, depth - 1) for _ in range(choose.byte() % 3)}
    simple = (
        choose.pick((None, "", [], {}, 0)),
        True,
        False,
        choose.pick(NUMBERS),
        choose.below(2**32) - 2**31,
        10**400,
        choose.text(),
    )
    return simple[kind]


def encoded(document: Any) -> bytes:
    """Lone surrogates and NaN travel as Python writes them."""
    return json.dumps(document).encode()
