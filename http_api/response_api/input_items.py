"""The turns of a chat from `input`: a text, or a list of messages, calls of functions and their outputs."""

import json
from collections.abc import Callable
from dataclasses import replace

from http_api.call_ids import with_ids
from http_api.content_parts import read_content
from http_api.fields import Fields, call_arguments, fields_of, leave_out, require_text
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import ChatMessage, ToolCall

# What is left out of earlier answers: what tools of other services did, which a client may have kept from a turn with
# another provider.
LEFT_OUT = (
    "compaction", "web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call",
    "computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output", "shell_call",
    "shell_call_output", "apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_call",
    "mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output",
)  # fmt: skip
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
            turns[-1] = _join(turns[-1], turn)
        else:
            turns.append(turn)
    turns = [turn for turn in turns if not _only_thinks(turn)]
    if not turns:
        raise InvalidRequest("input must contain a message: none of its items has text", "input")
    return with_ids(turns)


def _only_thinks(turn: ChatMessage) -> bool:
    return bool(turn.reasoning) and not (turn.content or turn.tool_calls)


def _join(turn: ChatMessage, following: ChatMessage) -> ChatMessage:
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
    has_content = isinstance(value, dict) and "content" in value
    turn = _message(fields, sees, has_content) if kind == "message" else READERS[kind](fields)
    fields.leave_rest()
    if kind == "reasoning" and not turn.reasoning:
        leave_out(f"input[].type={kind}")
        return None
    return turn


def _message(fields: Fields, sees: bool, has_content: bool) -> ChatMessage:
    role, where = fields.text("role", ""), fields.path("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where} must be one of {', '.join(ROLES)}", where)
    if not has_content and role != "assistant":
        where = fields.path("content")
        raise InvalidRequest(f"{where} is missing: a text, or a list of parts", where)
    pictures = "input_image" if sees and role == "user" else ""
    read = read_content(
        fields.take("content"), fields.path("content"), pictures, thoughts=role == "assistant"
    )
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
    call_id, name = fields.text("call_id", ""), _require_field(fields, "name")
    call = ToolCall(call_id, name, call_arguments(fields.take("arguments"), fields.path("arguments")))
    return ChatMessage("assistant", "", (call,))


def _custom_call(fields: Fields) -> ChatMessage:
    """A call with a text in place of arguments."""
    call_id, name = fields.text("call_id", ""), _require_field(fields, "name")
    call = ToolCall(call_id, name, json.dumps({"input": fields.text("input", "")}))
    return ChatMessage("assistant", "", (call,))


def _output(fields: Fields) -> ChatMessage:
    """A string, or the texts of a list of parts; none is an empty one.

    Some clients tell by one without an id what no call asked for.
    """
    text = read_content(fields.take("output"), fields.path("output")).text
    call_id, name = fields.text("call_id", ""), fields.text("name", "")
    return ChatMessage("tool", text, tool_call_id=call_id, name=name)


READERS: dict[str, Callable[[Fields], ChatMessage]] = {
    "reasoning": _thoughts,
    "function_call": _call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
}


def _require_field(fields: Fields, name: str) -> str:
    return require_text(fields.raw(name), fields.path(name))
