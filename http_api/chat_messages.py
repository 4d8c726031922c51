"""The turns of a chat, from JSON: texts, tool calls and the results of tools."""

import json
from typing import Any

from http_api.call_ids import with_ids
from http_api.content_parts import Place, Said, newest, place_images, read_beside, read_into, read_part
from http_api.fields import Fields, as_integer, call_arguments, fields_of, require_text
from opensled.core.errors import InvalidRequest
from opensled.core.images import ImageFacts
from opensled.core.messages import ChatMessage, ModelInfo, Prompt, ToolCall
from opensled.text.thinking import KEYS

MAX_PROMPTS = 64  # in one request


def read_prompts(value: object, info: ModelInfo) -> tuple[Prompt, ...]:
    """Texts or lists of token ids: one of them, or a list."""
    if isinstance(value, str):
        return (require_text(value, "prompt"),)
    if not isinstance(value, list) or not value:
        raise InvalidRequest("prompt must be a string, a list of token ids, or a list of either", "prompt")
    if not isinstance(value[0], (str, list)):
        return (token_ids(value, "prompt", info),)
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt may hold at most {MAX_PROMPTS} prompts", "prompt")
    if isinstance(value[0], str):
        return tuple(require_text(text, "prompt") for text in value)
    return tuple(_some_ids(ids, info) for ids in value)


def _some_ids(value: object, info: ModelInfo) -> tuple[int, ...]:
    ids = token_ids(value, "prompt", info)
    if not ids:
        raise InvalidRequest("prompt has a list without a token id", "prompt")
    return ids


def token_ids(value: object, name: str, info: ModelInfo) -> tuple[int, ...]:
    """A list of ids of the vocabulary; raises InvalidRequest for `name`."""
    ids = [as_integer(token) for token in value] if isinstance(value, list) else [None]
    if None in ids:
        raise InvalidRequest(f"{name} must be a list of token ids", name)
    known = tuple(token for token in ids if token is not None and 0 <= token < info.vocab_size)
    if len(known) < len(ids):
        raise InvalidRequest(f"{name} has an id outside the vocabulary of {info.vocab_size}", name)
    return known


# "function": results of older clients
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
CALLS = ("function", "custom")  # types of calls that the client answers
# Beside the content of a turn: Ollama's pictures, and what must not be missed in silence.
BESIDE = ("images", "image", "image_url", "input_audio", "video", "files", "attachments")


def read_turns(value: object, facts: ImageFacts | None = None) -> tuple[ChatMessage, ...]:
    """The field `messages`; `facts`: of a target that reads pictures."""
    if not isinstance(value, list) or not value:
        raise InvalidRequest("messages must be a list with at least one message", "messages")
    new = newest(value)
    turns = [_turn(message, f"messages[{index}]", facts, index == new) for index, message in enumerate(value)]
    return with_ids(place_images(turns, facts))


def _turn(value: object, where: str, facts: ImageFacts | None, is_new: bool) -> ChatMessage:
    fields = fields_of(value, where)
    role = fields.text("role", "")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
    if role in ("system", "developer", "user") and isinstance(value, dict) and "content" not in value:
        raise InvalidRequest(f"{where}.content is missing: a text, or a list of parts", f"{where}.content")
    role = {"developer": "system", "function": "tool"}.get(role, role)  # as chat templates know them
    said = Said(Place(facts, role, is_new and role == "user"))
    read_beside(said, fields, *BESIDE)
    read_into(said, fields.take("content"), fields.path("content"))
    more = _answered(fields, said) if role == "assistant" else {}
    if role == "tool":
        more = {"tool_call_id": fields.text("tool_call_id", "")}
    name, tool = fields.text("name", ""), fields.text("tool_name", "")  # the second as Ollama has it
    if role != "assistant":
        read_beside(said, fields, "tool_calls", "function_call")
    fields.leave_rest()
    return said.turn(role, name=tool or name, **more)


def _answered(fields: Fields, said: Said) -> dict[str, Any]:
    """Of an assistant's turn the calls and thoughts; it may have a text, both, or nothing: an answer that ended at
    once."""
    value: Any = fields.take("tool_calls")
    made = [] if value is None else value
    if not isinstance(made, list):
        raise InvalidRequest(f"{fields.path('tool_calls')} must be a list", fields.path("tool_calls"))
    only = None if made else fields.take("function_call")  # as older clients remember a call
    read = list[ToolCall]()
    for index, value in enumerate(made):
        call = fields_of(value, fields.path(f"tool_calls[{index}]"))
        kind = call.text("type", "function")
        if kind in CALLS:
            read.append(_call(kind, call))
        else:  # of a tool that ran elsewhere
            read_part(said, kind, call)
    if only:
        read.append(read_call(fields_of(only, fields.path("function_call")), ""))
    refusal = fields.text("refusal", "")
    if said.is_empty:
        said.say(refusal)
        read_beside(said, fields, *(["audio"] if said.is_empty else []))
    return {"tool_calls": tuple(read), "reasoning": _reasoning(fields) or said.thoughts}


def _reasoning(fields: Fields) -> str:
    """The thoughts of an earlier answer, as one of the servers spells them that clients know."""
    for name in KEYS:
        value = fields.take(name)
        if isinstance(value, str) and value:
            for other in KEYS:
                fields.take(other)
            return require_text(value, fields.path(name))
    return ""


def _call(kind: str, fields: Fields) -> ToolCall:
    id, inner = fields.text("id", ""), fields.inside(kind)
    call = read_call(inner, id) if kind == "function" else custom_call(inner, id)
    fields.leave_rest()
    return call


def custom_call(fields: Fields, id: str) -> ToolCall:
    """A call with a text in place of arguments."""
    name = require_text(fields.raw("name"), fields.path("name"))
    return ToolCall(id, name, json.dumps({"input": fields.text("input", "")}))


def read_call(fields: Fields, id: str, arguments: str = "arguments") -> ToolCall:
    """A call by its name and the field of its arguments; the rest is left out."""
    name = require_text(fields.raw("name"), fields.path("name"))
    call = ToolCall(id, name, call_arguments(fields.take(arguments), fields.path(arguments)))
    fields.leave_rest()
    return call
