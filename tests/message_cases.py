"""Requests of Anthropic's form as data: what is refused by which field, and the turns that messages are read as."""

from typing import Any

from opensled.core.messages import ChatMessage, ToolCall

SCHEMA = {"type": "object", "properties": {"on": {"type": "boolean"}}}
LAMP = {"name": "lamp", "description": "a lamp", "input_schema": SCHEMA}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
FORM = {"type": "json_schema", "schema": SCHEMA}
HI = {"role": "user", "content": "Hi"}


def user(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


def called(result: Any, **more: Any) -> list[dict[str, Any]]:
    """A chat in which a tool was called, and what came of it."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "lamp", "input": {"on": True}}
    told = {"type": "tool_result", "tool_use_id": "toolu_1", "content": result, **more}
    return [HI, {"role": "assistant", "content": [use]}, *user(told)]


CALL = ChatMessage("assistant", "", (ToolCall("toolu_1", "lamp", '{"on": true}'),))
ASKED = ChatMessage("user", "Hi")


def outcome(text: str) -> ChatMessage:
    return ChatMessage("tool", text, tool_call_id="toolu_1")


def answered(*blocks: Any) -> list[dict[str, Any]]:
    return [HI, {"role": "assistant", "content": list(blocks)}, HI]


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


# Fields, and the turns they are read as.
TURNS: list[tuple[dict[str, Any], tuple[ChatMessage, ...]]] = [
    ({"messages": [HI], "system": "Be brief."}, (ChatMessage("system", "Be brief."), ASKED)),
    (
        {"messages": [HI], "system": [text("Be ", cache_control={"type": "ephemeral"}), text("brief.")]},
        (ChatMessage("system", "Be brief."), ASKED),
    ),
    ({"messages": [HI], "system": []}, (ASKED,)),
    ({"messages": [HI], "system": ""}, (ASKED,)),
    ({"messages": user(text("H"), {"text": "i"})}, (ASKED,)),
    ({"messages": [HI, {"role": "system", "content": "Now."}]}, (ASKED, ChatMessage("system", "Now."))),
    ({"messages": answered(text("Yes", citations=None))}, (ASKED, ChatMessage("assistant", "Yes"), ASKED)),
    (
        {
            "messages": answered(
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                text("Yes"),
            )
        },
        (ASKED, ChatMessage("assistant", "Yes", reasoning="hm"), ASKED),
    ),
    ({"messages": [HI, {"role": "assistant"}, HI]}, (ASKED, ChatMessage("assistant", ""), ASKED)),
    ({"messages": called("lit")}, (ASKED, CALL, outcome("lit"))),
    ({"messages": called([text("li"), text("t")])}, (ASKED, CALL, outcome("lit"))),
    ({"messages": called(None)}, (ASKED, CALL, outcome(""))),
    ({"messages": called(3)}, (ASKED, CALL, outcome("3"))),
    ({"messages": called("no lamp", is_error=True)}, (ASKED, CALL, outcome("Error: no lamp"))),
    ({"messages": called("lit", is_error=False)}, (ASKED, CALL, outcome("lit"))),
    (
        {"messages": [*called("lit")[:2], *user(text("Well?"), called("lit")[2]["content"][0])]},
        (ASKED, CALL, outcome("lit"), ChatMessage("user", "Well?")),
    ),
    (
        {
            "messages": answered(
                text("I look."),
                {"type": "tool_use", "id": "a", "name": "f", "input": {}, "caller": {"type": "direct"}},
            )
        },
        (ASKED, ChatMessage("assistant", "I look.", (ToolCall("a", "f", "{}"),)), ASKED),
    ),
]

# Left out, and named in the header.
IGNORED: list[tuple[dict[str, Any], str]] = [
    ({"metadata": {"user_id": "a"}}, "metadata"), ({"service_tier": "auto"}, "service_tier"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens, thinking"),
    ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "output_config.effort"),
    ({"context_management": {"edits": []}}, "context_management"), ({"speed": "fast"}, "speed"),
    ({"cache_control": {"type": "ephemeral"}}, "cache_control"), ({"inference_geo": "eu"}, "inference_geo"),
    ({"fallbacks": [{"model": "b"}]}, "fallbacks"), ({"tools": [SEARCH]}, "tools[0] (web_search_20250305)"),
    ({"tools": [{"googleSearch": {}}]}, "tools[0] (googleSearch)"),
    ({"tools": [{**LAMP, "cache_control": {"type": "ephemeral"}, "defer_loading": True}]},
     "tools[0].cache_control, tools[0].defer_loading"),
    ({"messages": user(text("Hi", cache_control={"type": "ephemeral"}))}, "messages[].content[].cache_control"),
]  # fmt: skip

PDF = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"},
}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "a", "content": []}

# Refused, and the field that the message names.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"), ({"messages": None}, "messages"), ({"messages": "Hi"}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"), ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"content": "a"}]}, "messages[0].role"), ({"messages": [{"role": 3}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
    ({"messages": user({"type": 3})}, "content[0].type"),
    ({"messages": user({"type": "text"})}, "messages[0].content[0].text"),
    ({"messages": user(PDF)}, "messages[0].content[0].document"),
    ({"messages": user(PICTURE)}, "messages[0].content[0].image:"), ({"messages": user(FOUND)}, "content[0].type"),
    ({"messages": user({"type": "thinking", "thinking": "a"})}, "messages[0].content[0].type"),
    ({"messages": answered({"type": "tool_use", "id": "a", "name": "f", "input": [1]})}, "content[0].input"),
    ({"messages": answered({"type": "tool_use", "id": 1, "name": "f", "input": {}})}, "messages[1].content[0].id"),
    ({"messages": user({"type": "tool_result", "tool_use_id": 1})}, "messages[0].content[0].tool_use_id"),
    ({"messages": called("a", is_error="yes")}, "messages[2].content[0].is_error"),
    ({"messages": [HI, {"role": "assistant", "content": "I "}]}, "messages must end"),
    ({"system": 3}, "system"), ({"system": [3]}, "system[0]"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": "9"}, "max_tokens"), ({"max_tokens": 2**31}, "max_tokens"),
    ({"temperature": 1.1}, "temperature"), ({"temperature": -1}, "temperature"), ({"temperature": "1"}, "temperature"),
    ({"top_p": 2}, "top_p"), ({"top_k": "1"}, "top_k"), ({"stop_sequences": ["a", 3]}, "stop_sequences[1] must"),
    ({"stop_sequences": ["a"] * 65}, "stop_sequences"), ({"stream": "yes"}, "stream"), ({"stop": [3]}, "stop[0]"),
    ({"model": 3}, "model"), ({"container": "c"}, "container"), ({"mcp_servers": [{"url": "a"}]}, "mcp_servers"),
    ({"thread": {"type": "create"}}, "thread"), ({"compaction": {}, "nonsense": 1}, "nonsense"),
    ({"tools": LAMP}, "tools"), ({"tools": [3]}, "tools[0]"), ({"tools": [{}]}, "tools[0].name"),
    ({"tools": [{"name": ""}]}, "tools[0].name"), ({"tools": [LAMP, {"name": "lamp"}]}, "tools"),
    ({"tools": [{"name": "f", "input_schema": 3}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "f", "schema": {"type": "object"}}]}, "tools[0].schema"),
    ({"tools": [LAMP], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [LAMP], "tool_choice": {"type": "always"}}, "tool_choice.type"),
    ({"tools": [LAMP], "tool_choice": {"type": "tool", "name": "door"}}, "tool_choice"),
    ({"tools": [LAMP], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice"),
    ({"output_config": "json"}, "output_config"), ({"output_config": {"a": 1}}, "output_config.a"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ({"output_config": {"format": {**FORM, "schema": 1}}}, "output_config.format.schema"),
    ({"output_format": {"type": "json_schema", "a": 1}}, "output_format.a"),
]  # fmt: skip
