"""The turns of a chat from `input`: a text, or a list of messages, calls of functions and their outputs."""

import json
from collections.abc import Callable
from dataclasses import replace

from http_api.content_parts import read_content
from http_api.fields import Fields, call_arguments, fields_of, leave_out, require_text
from opensled.errors import InvalidRequest, Unsupported
from opensled.messages import ChatMessage, ToolCall

# What is left out of earlier answers: traces of tools of other services that hold no results.
LEFT_OUT = ("web_search_call", "file_search_call", "mcp_list_tools", "compaction")
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
STATES = ("in_progress", "completed", "incomplete")


def read_input(value: object, sees: bool = False) -> tuple[ChatMessage, ...]:
    """The field `input`; `sees`: whether the target reads pictures.

    Calls join the assistant's turn before them, as one answer holds them, and thoughts the one behind them.
    """
    if isinstance(value, str):
        return (ChatMessage("user", require_text(value, "input")),)
    if not isinstance(value, list) or not value:
        raise InvalidRequest("input must be a string, or a list with at least one item", "input")
    turns: list[ChatMessage] = []
    for index, item in enumerate(value):
        turn = _turn(item, f"input[{index}]", sees)
        if turn is None:
            continue
        if (
            turns
            and turn.role == turns[-1].role == "assistant"
            and (turn.tool_calls or _only_thinks(turns[-1]))
        ):
            turns[-1] = _joined(turns[-1], turn)
        else:
            turns.append(turn)
    turns = [turn for turn in turns if not _only_thinks(turn)]
    if not turns:
        raise InvalidRequest("input must have a message: its items hold nothing that is read", "input")
    return tuple(turns)


def _only_thinks(turn: ChatMessage) -> bool:
    return bool(turn.reasoning) and not (turn.content or turn.tool_calls)


def _joined(turn: ChatMessage, following: ChatMessage) -> ChatMessage:
    """Two items of one answer as one turn."""
    return replace(
        turn,
        content=turn.content + following.content,
        tool_calls=turn.tool_calls + following.tool_calls,
        reasoning=turn.reasoning + following.reasoning,
    )


def _turn(value: object, where: str, sees: bool) -> ChatMessage | None:
    """None: an item that is left out."""
    fields = fields_of(value, where)
    kind = fields.text("type", "message")
    if kind in LEFT_OUT:
        leave_out(f"input[].type={kind}")
        return None
    if kind == "item_reference":
        raise Unsupported(
            f"{where}.type item_reference names an item that OpenAI stores; nothing is stored here: send the item "
            "itself, as the answer had it",
            f"{where}.type",
        )
    if kind != "message" and kind not in READERS:
        raise Unsupported(
            f"{where}.type must be one of message, {', '.join(READERS)}: nothing is stored or run here, send what was "
            "said",
            f"{where}.type",
        )
    turn = _message(fields, sees) if kind == "message" else READERS[kind](fields)
    fields.leave_rest()
    if kind == "reasoning" and not turn.reasoning:
        leave_out(f"input[].type={kind}")
        return None
    return turn


def _message(fields: Fields, sees: bool) -> ChatMessage:
    role, where = fields.text("role", ""), fields.path("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where} must be one of {', '.join(ROLES)}", where)
    pictures = "input_image" if sees and role == "user" else ""
    content = fields.take("content")
    if content is None and role == "assistant":
        return ChatMessage(role, "")
    read = read_content(content, fields.path("content"), pictures, thoughts=role == "assistant")
    return ChatMessage(ROLES[role], read.text, images=read.images, reasoning=read.thoughts)


def _thoughts(fields: Fields) -> ChatMessage:
    """Of an earlier answer: in clear, else their summary; of encrypted ones alone there is nothing to read."""
    read = [
        read_content(value, fields.path(name), thoughts=True)
        for name in ("content", "summary")
        if isinstance(value := fields.take(name), list)
    ]
    told = [one.thoughts + one.text for one in read]
    return ChatMessage("assistant", "", reasoning=next(filter(None, told), ""))


def _call(fields: Fields) -> ChatMessage:
    call_id, name = (_required(fields, each) for each in ("call_id", "name"))
    call = ToolCall(call_id, name, call_arguments(fields.take("arguments"), fields.path("arguments")))
    return ChatMessage("assistant", "", (call,))


def _custom_call(fields: Fields) -> ChatMessage:
    """A call with a text in place of arguments."""
    call_id, name, text = (_required(fields, each) for each in ("call_id", "name", "input"))
    return ChatMessage("assistant", "", (ToolCall(call_id, name, json.dumps({"input": text})),))


def _output(fields: Fields) -> ChatMessage:
    """A string, or the texts of a list of parts; none is an empty one."""
    output = fields.take("output")
    text = "" if output is None else read_content(output, fields.path("output")).text
    return ChatMessage("tool", text, tool_call_id=_required(fields, "call_id"))


READERS: dict[str, Callable[[Fields], ChatMessage]] = {
    "reasoning": _thoughts,
    "function_call": _call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
}


def _required(fields: Fields, name: str) -> str:
    return require_text(fields.take(name), fields.path(name))
