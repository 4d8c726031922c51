"""The grammar of a guided answer, in llguidance's Lark: what `response_format` and `tools` ask for, as text.

Tool calls are written as the chat template has them (verify_server/text/chat_template.py). With `tool_choice` "auto"
the answer is free text or calls; where tags set calls apart they may also follow free text, as models write that think
aloud first. Nothing sets bare JSON calls apart, so there is one at most: `parallel` allows several, it demands none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opensled.errors import InvalidRequest, Unsupported
from opensled.messages import CALL_TAGS, Guide, Tool
from verify_server.text.chat_template import has_call_tags, parameters, parse_object

MAX_SCHEMA = 64 * 1024  # characters of all schemas of one guide
# What the compiler takes seconds to minutes for, which nothing could interrupt: patterns of keys, each tried against
# each other, and regular expressions that must all match the same text.
MAX_KEY_PATTERNS = 100
MAX_JOINED_PATTERNS = 8
# Keywords that bring in another schema, and those that ask for nothing.
APPLICATORS = {"allOf", "anyOf", "oneOf", "$ref"}
ANNOTATIONS = {
    "title",
    "description",
    "default",
    "examples",
    "$defs",
    "definitions",
    "$id",
    "$schema",
    "$comment",
}
# Models write JSON on one line with single spaces, or indented. Without a bound they can pad for ever.
WHITESPACE = r" |\n[ \t]{0,40}"
# Call tags around something else than JSON (Qwen3-Coder, GLM).
FOREIGN_CALLS = ("<function=", "<arg_key>")

# Every token whose bytes keep within the grammar is allowed, not only those of the canonical tokenization.
HEADER = '%llguidance {"no_forcing": true}'
# Free text, up to the first opening tag (`head` below is lazy), or without a brace at its beginning.
TAGGED_TEXT = r"TEXT: /(.|\n)*/"
BARE_TEXT = r"TEXT: /[ \t\r\n]*([^{ \t\r\n](.|\n)*)?/"


@dataclass(frozen=True)
class GrammarPart:
    """One JSON schema of a grammar, kept to name the culprit when the grammar cannot be compiled."""

    what: str
    field: str  # the request field it came in
    schema: str


@dataclass(frozen=True)
class Grammar:
    """What llguidance compiles, and whom to blame when it cannot."""

    lark: str
    parts: tuple[GrammarPart, ...]
    field: str  # the request field that asked for a grammar


def grammar_of(guide: Guide, template: str) -> Grammar:
    """The grammar of a guide for the model of a chat template.

    Raises InvalidRequest and Unsupported with `field` `response_format`, `tools` or `tool_choice`.
    """
    field = "tools" if guide.tool_choice in ("auto", "required") else "response_format"
    if len(guide.json_schema) + sum(len(tool.parameters) for tool in guide.tools) > MAX_SCHEMA:
        raise InvalidRequest(f"the schemas are longer than {MAX_SCHEMA} characters", field)
    if field == "response_format":
        part = _answer_part(guide)
        return Grammar("\n".join((HEADER, "start: answer", f"answer: %json {part.schema}")), (part,), field)
    return _tools_grammar(guide, template)


def _tools_grammar(guide: Guide, template: str) -> Grammar:
    tools = _callable(guide)
    tagged = has_call_tags(template)
    if any(mark in template for mark in FOREIGN_CALLS):
        raise Unsupported("this target writes its tool calls in a way no grammar is known for here", "tools")
    calls = {"anyOf": [_call_schema(tool, number) for number, tool in enumerate(tools)]}
    parts = [
        GrammarPart(f"the parameters of tool {tool.name!r}", "tools", _schema_text(parameters(tool), "tools"))
        for tool in tools
    ]
    rules = [HEADER, f"object: %json {_schema_text(calls, 'tools')}"]
    rules += _tagged_calls(guide.parallel) if tagged else ["calls: object"]
    if guide.tool_choice == "required":
        rules.append("start: calls")
    elif guide.json_schema:
        if not tagged:
            raise Unsupported(
                "beside a schema, tool calls of this target cannot be told apart", "response_format"
            )
        parts.append(_answer_part(guide))
        rules += ["start: answer | calls", f"answer: %json {parts[-1].schema}"]
    elif tagged:
        rules += ["start: TEXT | head body more", f'head[lazy]: TEXT "{CALL_TAGS[0]}"', TAGGED_TEXT]
    else:
        rules += ["start: TEXT | calls", BARE_TEXT]
    return Grammar("\n".join(rules), tuple(parts), "tools")


def _tagged_calls(parallel: bool) -> list[str]:
    """Rules of calls as Hermes and Qwen write them: each on lines of its own, the next right after a line break."""
    start, end = CALL_TAGS
    return [
        "calls: call more",
        f'call: "{start}" body',
        rf'body: "\n" object "\n{end}"',
        r'more: ("\n" call)*' if parallel else 'more: ""',
    ]


def _callable(guide: Guide) -> tuple[Tool, ...]:
    """The tools that may be called: at least one, each name once."""
    names = [tool.name for tool in guide.tools]
    if len(set(names)) < len(names):
        raise InvalidRequest("two tools have the same name", "tools")
    tools = tuple(tool for tool in guide.tools if guide.function in ("", tool.name))
    if not tools:
        wanted = f"the tool {guide.function!r}" if guide.function else "a tool"
        raise InvalidRequest(f"tool_choice asks for {wanted}, but tools has none", "tool_choice")
    return tools


def _call_schema(tool: Tool, number: int) -> dict[str, Any]:
    """An object like {"name": ..., "arguments": {...}}; an `$id` of its own keeps the schema's references inside it."""
    arguments = {**parameters(tool), "$id": f"tool:{number}"}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _answer_part(guide: Guide) -> GrammarPart:
    schema = parse_object(guide.json_schema, "the schema is", "response_format") or {"type": "object"}
    return GrammarPart("the schema", "response_format", _schema_text(schema, "response_format"))


def _schema_text(schema: dict[str, Any], field: str) -> str:
    """A schema as llguidance gets it: with our own options, not those the schema may bring."""
    nodes = list(_objects(schema))
    if any(_counts_keys(node) for node in nodes):
        raise Unsupported("minProperties above 1 cannot be kept to; list the keys as required", field)
    key_patterns = sum(len(_items(node, "patternProperties")) for node in nodes)
    patterns = sum(isinstance(node.get(key), str) for node in nodes for key in ("pattern", "format"))
    if key_patterns > MAX_KEY_PATTERNS or (patterns > MAX_JOINED_PATTERNS and any(map(_joins, nodes))):
        raise Unsupported("too many patterns to compile; use fewer of them, or no allOf beside them", field)
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})


def _counts_keys(node: dict[str, Any]) -> bool:
    """Whether an object must have more keys than are required by name: the grammar lets a free key appear twice."""
    least = node.get("minProperties")
    return isinstance(least, int | float) and least > max(1, len(_items(node, "required")))


def _joins(node: dict[str, Any]) -> bool:
    """Whether a text must fulfil several schemas at once."""
    applied = APPLICATORS & node.keys()
    return bool(applied) and (len(node.keys() - ANNOTATIONS) > 1 or len(_items(node, "allOf")) > 1)


def _items(node: dict[str, Any], key: str) -> Sequence[Any] | Mapping[str, Any]:
    value = node.get(key)
    return value if isinstance(value, list | dict) else ()


def _objects(value: object) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value, itself included."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
