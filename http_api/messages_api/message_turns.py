"""The turns of a chat from `system` and `messages`: texts, pictures, calls of tools and their results."""

from __future__ import annotations

from dataclasses import replace

from http_api.call_ids import with_ids
from http_api.chat_messages import read_call
from http_api.content_parts import Place, Said, newest, parts_of, place_images, read_content, read_part
from http_api.fields import Fields, fields_of
from opensled.core.errors import InvalidRequest
from opensled.core.images import ImageFacts
from opensled.core.messages import ChatMessage, ToolCall

FAILED = "Error: "  # before the result of a call that failed; chat templates have no other word for it
CALL, RESULT = "tool_use", "tool_result"  # blocks that only a turn of the assistant or of the user has


def read_messages(fields: Fields, facts: ImageFacts | None = None) -> tuple[ChatMessage, ...]:
    """The fields `system` and `messages`; `facts`: of a target that reads pictures.

    Raises InvalidRequest or Unsupported with the path of the block.
    """
    system = read_content(fields.take("system"), "system", Place(facts, "system"))
    turns = [] if system.is_empty else [system.turn("system")]
    value = fields.take("messages")
    if not isinstance(value, list) or not value:
        raise InvalidRequest("messages must be a list with at least one message", "messages")
    new = newest(value)
    for index, message in enumerate(value):
        turns += _turns(message, f"messages[{index}]", facts, index == new)
    if turns[-1].role == "assistant":
        raise InvalidRequest(
            "messages must end with a turn of the user: an answer cannot be prefilled; ask for its form in words, or "
            "by output_config.format",
            "messages",
        )
    return with_ids(place_images(turns, facts))


def _turns(value: object, where: str, facts: ImageFacts | None, is_new: bool) -> list[ChatMessage]:
    """The results of tools come first, since they answer the turn before; a message may hold nothing else."""
    fields = fields_of(value, where)
    role = fields.text("role", "")
    if role not in ("user", "assistant", "system"):
        raise InvalidRequest(f"{where}.role must be one of user, assistant, system", f"{where}.role")
    parts = list(parts_of(fields.take("content"), f"{where}.content"))
    answers = role == "user" and any(kind == RESULT for kind, _ in parts)  # what stands beside came with them
    said = Said(Place(facts, role, is_new and role == "user" and not answers))
    results, calls = list[ChatMessage](), list[ToolCall]()
    for kind, part in parts:
        if kind == RESULT and role == "user":
            results.append(_result(part, facts))
        elif kind == CALL and role == "assistant":
            calls.append(read_call(part, part.text("id", ""), "input"))
        else:
            read_part(said, kind, part)
        part.leave_rest()
    fields.leave_rest()
    if results and said.is_empty:
        return results
    return [*results, said.turn(role, tool_calls=tuple(calls), reasoning=said.thoughts)]


def _result(fields: Fields, facts: ImageFacts | None) -> ChatMessage:
    call_id = fields.text("tool_use_id", "")
    told = read_content(fields.take("content"), fields.path("content"), Place(facts, "tool"))
    turn = told.turn("tool", tool_call_id=call_id)
    return replace(turn, content=FAILED + turn.content) if fields.flag("is_error", False) else turn
