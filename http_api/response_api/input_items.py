"""The turns of a chat from `input`: a text, or a list of messages, calls of functions and their outputs."""

import re
from collections.abc import Callable
from dataclasses import replace

from http_api.call_ids import with_ids
from http_api.chat_messages import custom_call, read_call
from http_api.content_parts import Place, Said, newest, place_images, read_content, read_part
from http_api.fields import Fields, fields_of, require_text
from http_api.left_out import leave_out
from opensled.core.errors import InvalidRequest
from opensled.core.images import ImageFacts
from opensled.core.messages import ChatMessage

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
OUTPUTS = (
    "function_call_output", "custom_tool_call_output", "computer_call_output", "local_shell_call_output",
    "shell_call_output", "apply_patch_call_output",
)  # fmt: skip
DONE = re.compile(r"\w+_(call|output|tools|request|response)|compaction")  # items of earlier answers
STATES = ("in_progress", "completed", "incomplete")


def read_input(value: object, facts: ImageFacts | None = None) -> tuple[ChatMessage, ...]:
    """The field `input`; `facts`: of a target that reads pictures.

    Calls, and what other services did, join the assistant's turn before them, as one answer holds them, and thoughts
    the one behind them.
    """
    if isinstance(value, str):
        return (ChatMessage("user", require_text(value, "input")),)
    if not isinstance(value, list) or not value:
        raise InvalidRequest("input must be a string, or a list with at least one item", "input")
    turns, new, others = list[ChatMessage](), newest(value), False
    for index, item in enumerate(value):
        turn = _turn(item, f"input[{index}]", facts, index == new)
        if turn is None:
            continue
        before, others = others, item.get("type") not in (None, "", "message", *READERS)
        same = bool(turns) and turn.role == turns[-1].role == "assistant"
        if same and (turn.tool_calls or before or others or _only_thinks(turns[-1])):
            turns[-1] = _join(turns[-1], turn)
        else:
            turns.append(turn)
    turns = [turn for turn in turns if not _only_thinks(turn)]
    if not turns:
        raise InvalidRequest("input must contain a message: none of its items has text", "input")
    return with_ids(place_images(turns, facts))


def _only_thinks(turn: ChatMessage) -> bool:
    return bool(turn.reasoning) and not (turn.content or turn.tool_calls)


def _join(turn: ChatMessage, following: ChatMessage) -> ChatMessage:
    """Two items of one answer as one turn."""
    return replace(
        turn,
        content="\n".join(filter(None, (turn.content, following.content))),
        images=turn.images + following.images,
        tool_calls=turn.tool_calls + following.tool_calls,
        reasoning=turn.reasoning + following.reasoning,
    )


def _turn(value: object, where: str, facts: ImageFacts | None, is_new: bool) -> ChatMessage | None:
    """None: an item that is left out."""
    fields = fields_of(value, where)
    kind = fields.text("type", "message")
    turn: ChatMessage | None
    if kind == "message":
        turn = _message(fields, facts, is_new, isinstance(value, dict) and "content" in value)
    elif kind in READERS:
        turn = READERS[kind](fields, facts)
    else:
        said = Said(Place(facts, "assistant", is_new and not DONE.fullmatch(kind)))
        read_part(said, kind, fields)
        turn = None if said.is_empty else said.turn("assistant")
    fields.leave_rest()
    if kind == "reasoning" and turn and not turn.reasoning:
        leave_out(f"input[].type={kind}")
        return None
    return turn


def _message(fields: Fields, facts: ImageFacts | None, is_new: bool, has_content: bool) -> ChatMessage:
    role, where = fields.text("role", ""), fields.path("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where} must be one of {', '.join(ROLES)}", where)
    if not has_content and role != "assistant":
        where = fields.path("content")
        raise InvalidRequest(f"{where} is missing: a text, or a list of parts", where)
    place = Place(facts, ROLES[role], is_new and role == "user")
    said = read_content(fields.take("content"), fields.path("content"), place)
    return said.turn(ROLES[role], reasoning=said.thoughts)


def _thoughts(fields: Fields, facts: ImageFacts | None) -> ChatMessage:
    """Of an earlier answer: in clear, else their summary; of encrypted ones alone there is nothing to read."""
    read = [
        read_content(value, fields.path(name), Place(role="assistant"))
        for name in ("content", "summary")
        if isinstance(value := fields.take(name), list)
    ]
    told = [one.thoughts + one.text for one in read]
    return ChatMessage("assistant", "", reasoning=next(filter(None, told), ""))


def _call(fields: Fields, facts: ImageFacts | None) -> ChatMessage:
    return ChatMessage("assistant", "", (read_call(fields, fields.text("call_id", "")),))


def _custom_call(fields: Fields, facts: ImageFacts | None) -> ChatMessage:
    return ChatMessage("assistant", "", (custom_call(fields, fields.text("call_id", "")),))


def _output(fields: Fields, facts: ImageFacts | None) -> ChatMessage:
    """A string, a list of parts, one of them, or another value; none is an empty one.

    Some clients tell by one without an id what no call asked for.
    """
    call_id, name = fields.text("call_id", ""), fields.text("name", "")
    said = read_content(fields.take("output"), fields.path("output"), Place(facts, "tool"))
    return said.turn("tool", tool_call_id=call_id, name=name)


READERS: dict[str, Callable[[Fields, ImageFacts | None], ChatMessage]] = {
    "reasoning": _thoughts,
    "function_call": _call,
    "custom_tool_call": _custom_call,
    **dict.fromkeys(OUTPUTS, _output),
}
