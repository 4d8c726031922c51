"""Every name that clients have for thinking, and what becomes of it."""

import json
from typing import Any

import pytest

from opensled.core.messages import ThoughtTags
from tests.fake_backend import HELLO, FakeBackend, call

THINKS = ThoughtTags("<think>", "</think>")
# What is asked for, of a model with these tags and variables: its variables, the field that is refused, or what is
# left out.
WISHES: list[tuple[dict[str, Any], ThoughtTags | None, tuple[str, ...], dict[str, Any] | str, str]] = [
    ({}, THINKS, ("enable_thinking",), {}, ""),
    ({"enable_thinking": False}, None, (), {}, ""),
    ({"enable_thinking": True}, None, (), {}, "enable_thinking"),
    ({"enable_thinking": True}, THINKS, (), {}, ""),
    ({"enable_thinking": False}, THINKS, ("thinking",), {"thinking": False}, ""),
    ({"thinking": {"type": "disabled"}}, THINKS, ("thinking_budget",), {"thinking_budget": 0}, ""),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, THINKS, ("thinking",), {"thinking": True},
     "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive"}}, THINKS, ("thinking",), {}, ""),
    ({"thinking": {"type": "often"}}, THINKS, (), "thinking.type", ""),
    ({"reasoning_effort": "none"}, THINKS, (), "reasoning_effort", ""),
    ({"reasoning_effort": "none"}, None, ("reasoning_effort",), {"reasoning_effort": "none"}, ""),
    ({"enable_thinking": False}, None, ("reasoning_effort",), "enable_thinking", ""),
    ({"reasoning_effort": "minimal"}, None, ("reasoning_effort",), {"reasoning_effort": "minimal"}, ""),
    ({"reasoning_effort": "xhigh"}, THINKS, ("enable_thinking",), {"enable_thinking": True}, "reasoning_effort"),
    ({"reasoning_effort": "auto"}, THINKS, (), {}, ""),
    ({"reasoning_effort": 3}, THINKS, (), "reasoning_effort", ""),
    ({"reasoning": {"effort": "low", "summary": "auto"}}, None, (), {}, "reasoning.summary, reasoning.effort"),
    ({"reasoning": {"enabled": False, "max_tokens": 5}}, THINKS, ("reasoning",), {"reasoning": False},
     "reasoning.max_tokens"),
    ({"reasoning": "high"}, THINKS, (), "reasoning", ""),
    ({"chat_template_kwargs": {"thinking": False}}, THINKS, ("enable_thinking",), {"enable_thinking": False}, ""),
    ({"chat_template_kwargs": {"enable_thinking": "no"}}, THINKS, (), "chat_template_kwargs.enable_thinking", ""),
    ({"chat_template_kwargs": {"a": [1], "b": 2}}, None, ("a",), {"a": [1]}, "chat_template_kwargs.b"),
    ({"chat_template_kwargs": {"add_generation_prompt": True, "tools": []}}, None, (), {}, ""),
    ({"chat_template_kwargs": {"add_generation_prompt": False}}, None, (), "chat_template_kwargs.add_generation_prompt",
     ""),
    ({"chat_template_kwargs": [1]}, None, (), "chat_template_kwargs", ""),
    ({"enable_thinking": True, "reasoning_effort": "none"}, THINKS, ("enable_thinking",), "reasoning_effort", ""),
    ({"include_reasoning": False, "thinking": None, "reasoning": None}, THINKS, (), {}, ""),
    ({"include_reasoning": "no"}, THINKS, (), "include_reasoning", ""),
]  # fmt: skip


@pytest.mark.parametrize(("asked_for", "tags", "read", "expected", "ignored"), WISHES)
def test_what_fields_ask_for(asked_for, tags, read, expected, ignored):
    backend = FakeBackend(thoughts=tags, template_variables=read)
    for path in ("/v1/chat/completions", "/v1/responses"):
        prompt = {"messages": HELLO} if "chat" in path else {"input": HELLO}
        response = call(backend, path, {**prompt, **asked_for})
        if isinstance(expected, str):
            assert (response.status_code, response.json()["error"]["param"]) == (400, expected)
            continue
        assert response.status_code == 200, response.text
        variables = backend.tasks[-1].template_variables
        assert (json.loads(variables) if variables else {}) == expected
        assert response.headers.get("OpenSLED-Ignored", "") == ignored
