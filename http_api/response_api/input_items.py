"""The turns of a chat from `input`: a text, or a list of messages, calls of functions and their outputs."""

from collections.abc import Callable
from dataclasses import replace

from http_api.content_parts import read_content
from http_api.fields import Fields, fields_of, require_text
from opensled.errors import InvalidRequest, Unsupported
from opensled.messages import ChatMessage, ToolCall

ITEM_TYPES = ("message", "function_call", "function_call_output")
PART_TYPES = ("input_text", "output_text")
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
STATES = ("in_progress", "completed", "incomplete")
# Fields of other services, which clients send as null when they repeat an item; Python's client may write "async_".
ABSENT = {
    "message": ("phase",),
    "function_call": ("namespace", "caller", "async", "async_"),
    "function_call_output": ("namespace", "caller", "name"),
}


def read_input(value: object, sees: bool = False) -> tuple[ChatMessage, ...]:
    """The field `input`; `sees`: whether the target reads pictures.

    Calls join the assistant's turn before them, as one answer holds them.
    """
    if isinstance(value, str):
        return (ChatMessage("user", require_text(value, "input")),)
    if not isinstance(value, list) or not value:
        raise InvalidRequest("input must be a string, or a list with at least one item", "input")
    turns: list[ChatMessage] = []
    for index, item in enumerate(value):
        turn = _turn(item, f"input[{index}]", sees)
        if turn.tool_calls and turns and turns[-1].role == "assistant":
            turns[-1] = replace(turns[-1], tool_calls=turns[-1].tool_calls + turn.tool_calls)
        else:
            turns.append(turn)
    return tuple(turns)


def _turn(value: object, where: str, sees: bool) -> ChatMessage:
    fields = fields_of(value, where)
    kind = fields.take("type")
    kind = "message" if kind is None else kind
    if kind == "item_reference":
        raise Unsupported(
            f"{where}.type item_reference names an item that OpenAI stores; nothing is stored here: send the item "
            "itself, as the answer had it",
            f"{where}.type",
        )
    if kind not in ITEM_TYPES:
        raise Unsupported(
            f"{where}.type must be one of {', '.join(ITEM_TYPES)}: nothing is stored or run here, send what was said",
            f"{where}.type",
        )
    fields.text("id", "")
    fields.only("status", *STATES)
    for name in ABSENT[kind]:
        fields.only(name)
    turn = _message(fields, sees) if kind == "message" else READERS[kind](fields)
    fields.finish()
    return turn


def _message(fields: Fields, sees: bool) -> ChatMessage:
    role, where = fields.text("role", ""), fields.path("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where} must be one of {', '.join(ROLES)}", where)
    pictures = "input_image" if sees and role == "user" else ""
    content = read_content(fields.take("content"), fields.path("content"), PART_TYPES, pictures)
    return ChatMessage(ROLES[role], content.text, images=content.images)


def _call(fields: Fields) -> ChatMessage:
    call = ToolCall(*(_required(fields, name) for name in ("call_id", "name", "arguments")))
    return ChatMessage("assistant", "", (call,))


def _output(fields: Fields) -> ChatMessage:
    return ChatMessage("tool", _text(fields, "output"), tool_call_id=_required(fields, "call_id"))


READERS: dict[str, Callable[[Fields], ChatMessage]] = {
    "function_call": _call,
    "function_call_output": _output,
}


def _required(fields: Fields, name: str) -> str:
    return require_text(fields.take(name), fields.path(name))


def _text(fields: Fields, name: str) -> str:
    """A string, or the texts of a list of parts."""
    return read_content(fields.take(name), fields.path(name), PART_TYPES).text
