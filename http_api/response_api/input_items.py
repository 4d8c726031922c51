"""The turns of a chat from `input`: a text, or a list of messages, calls of functions and their outputs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from http_api.fields import Fields, fields_of, require_text
from opensled.errors import InvalidRequest, Unsupported
from opensled.messages import ChatMessage, ToolCall

ITEM_TYPES = ("message", "function_call", "function_call_output")
PART_TYPES = ("input_text", "output_text")
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
STATES = ("in_progress", "completed", "incomplete")
# What a client repeats of an earlier answer; the text alone reaches the model.
LABELS = ("annotations", "logprobs")
# Fields of other services, which clients send as null when they repeat an item; Python's client may write "async_".
ABSENT = {
    "message": ("phase",),
    "function_call": ("namespace", "caller", "async", "async_"),
    "function_call_output": ("namespace", "caller", "name"),
}


def read_input(value: object) -> tuple[ChatMessage, ...]:
    """The field `input`. Calls join the assistant's turn before them, as one answer holds them."""
    if isinstance(value, str):
        return (ChatMessage("user", require_text(value, "input")),)
    if not isinstance(value, list) or not value:
        raise InvalidRequest("input must be a string, or a list with at least one item", "input")
    turns: list[ChatMessage] = []
    for index, item in enumerate(value):
        turn = _turn(item, f"input[{index}]")
        if turn.tool_calls and turns and turns[-1].role == "assistant":
            turns[-1] = replace(turns[-1], tool_calls=turns[-1].tool_calls + turn.tool_calls)
        else:
            turns.append(turn)
    return tuple(turns)


def _turn(value: object, where: str) -> ChatMessage:
    fields = fields_of(value, where)
    kind = fields.take("type")
    kind = "message" if kind is None else kind
    if kind not in ITEM_TYPES:
        raise Unsupported(
            f"{where}.type must be one of {', '.join(ITEM_TYPES)}: nothing is stored or run here, send what was said",
            f"{where}.type",
        )
    fields.text("id", "")
    fields.only("status", *STATES)
    for name in ABSENT[kind]:
        fields.only(name)
    turn = READERS[kind](fields)
    fields.finish()
    return turn


def _message(fields: Fields) -> ChatMessage:
    role, where = fields.text("role", ""), fields.path("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where} must be one of {', '.join(ROLES)}", where)
    return ChatMessage(ROLES[role], _text(fields, "content"))


def _call(fields: Fields) -> ChatMessage:
    call = ToolCall(*(_required(fields, name) for name in ("call_id", "name", "arguments")))
    return ChatMessage("assistant", "", (call,))


def _output(fields: Fields) -> ChatMessage:
    return ChatMessage("tool", _text(fields, "output"), tool_call_id=_required(fields, "call_id"))


READERS: dict[str, Callable[[Fields], ChatMessage]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
}


def _required(fields: Fields, name: str) -> str:
    return require_text(fields.take(name), fields.path(name))


def _text(fields: Fields, name: str) -> str:
    """A string, or the texts of a list of parts."""
    value: Any = fields.take(name)
    where = fields.path(name)
    if not isinstance(value, list):
        return require_text(value, where)
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(value))


def _part(value: object, where: str) -> str:
    fields = fields_of(value, where)
    if fields.take("type") not in PART_TYPES:
        raise Unsupported(
            f"{where}.type must be {' or '.join(PART_TYPES)}: this model reads nothing else", f"{where}.type"
        )
    text = _required(fields, "text")
    for name in LABELS:
        fields.take(name)
    fields.finish()
    return text
