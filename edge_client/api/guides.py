"""The form of an answer, from JSON: `response_format`, `tools` and `tool_choice`.

Before the target samples, the server masks tokens that would leave the grammar, so `strict` is always true here.
"""

import json
import re
from typing import Any

from edge_client.api.fields import Fields, fields_of, require_object, require_text
from opensled.errors import InvalidRequest, Unsupported
from opensled.messages import GUIDE, Guide, ModelInfo, Tool

ANY_OBJECT = "{}"
NAME = r"[a-zA-Z0-9_-]{1,64}"  # of a tool or a schema, as OpenAI has it
MAX_TOOLS = 128
CHOICES = ("none", "auto", "required")


def read_guide(fields: Fields, info: ModelInfo) -> Guide | None:
    """The guide of these fields; None: free text without tools."""
    schema = _response_format(fields.take("response_format"))
    tools = _tools(fields.take("tools"))
    mode, function = _tool_choice(fields.take("tool_choice"), tools)
    parallel = fields.flag("parallel_tool_calls", True)
    for name, value in (("response_format", schema), ("tools", tools)):
        if value and GUIDE not in info.capabilities:
            raise Unsupported(f"the server of {info.model_id} cannot guide answers: leave {name} out", name)
    if not tools:
        return Guide(json_schema=schema) if schema else None
    return Guide(schema, tools, mode, function, parallel)


def _response_format(value: object) -> str:
    """The JSON schema of the answer; "" for text."""
    if value is None:
        return ""
    fields = fields_of(value, "response_format")
    kind = fields.take("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise Unsupported(
            "response_format.type must be text, json_object or json_schema", "response_format.type"
        )
    schema = _json_schema(fields.inside("json_schema")) if kind == "json_schema" else ANY_OBJECT
    fields.finish()
    return "" if kind == "text" else schema


def _json_schema(fields: Fields) -> str:
    _name(fields)
    fields.text("description", "")
    fields.flag("strict", True)
    schema = fields.take("schema")
    fields.finish()
    return ANY_OBJECT if schema is None else _text(schema, fields.path("schema"))


def _tools(value: object) -> tuple[Tool, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise InvalidRequest(f"tools must be a list of at most {MAX_TOOLS} tools", "tools")
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(value))
    if len({tool.name for tool in tools}) < len(tools):
        raise InvalidRequest("tools has two tools of the same name", "tools")
    return tools


def _tool(value: object, where: str) -> Tool:
    outer = fields_of(value, where)
    if outer.take("type") != "function":
        raise Unsupported(f"{where}.type must be function", f"{where}.type")
    fields = outer.inside("function")
    outer.finish()
    name, description = _name(fields), fields.text("description", "")
    fields.flag("strict", True)
    schema = fields.take("parameters")
    fields.finish()
    return Tool(name, description, "" if schema is None else _text(schema, fields.path("parameters")))


def _tool_choice(value: object, tools: tuple[Tool, ...]) -> tuple[str, str]:
    """A mode of CHOICES, and the only function that may be called ("" = any)."""
    if value is None:
        return ("auto" if tools else "none"), ""
    if isinstance(value, str):
        if value not in CHOICES:
            raise InvalidRequest(
                f"tool_choice must be one of {', '.join(CHOICES)}, or name a function", "tool_choice"
            )
        mode, function = value, ""
    else:
        mode, function = "required", _chosen(value)
    if mode == "required" and function not in ("", *(tool.name for tool in tools)):
        raise InvalidRequest(f"tool_choice names {function}, which tools does not have", "tool_choice")
    if mode == "required" and not tools:
        raise InvalidRequest("tool_choice asks for a call, and tools is empty", "tool_choice")
    return mode, function


def _chosen(value: object) -> str:
    fields = fields_of(value, "tool_choice")
    if fields.take("type") != "function":
        raise Unsupported("tool_choice.type must be function", "tool_choice.type")
    inner = fields.inside("function")
    name = _name(inner)
    inner.finish()
    fields.finish()
    return name


def _name(fields: Fields) -> str:
    name = require_text(fields.take("name"), fields.path("name"))
    if not re.fullmatch(NAME, name):
        raise InvalidRequest(f"{fields.path('name')} must match {NAME}", fields.path("name"))
    return name


def _text(schema: Any, where: str) -> str:
    """A JSON schema as the wire has it."""
    try:
        text = json.dumps(require_object(schema, where), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is no JSON that can be sent on: {error}", where) from error
    return require_text(text, where)
