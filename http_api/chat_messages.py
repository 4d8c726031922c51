"""The turns of a chat, from JSON: texts, tool calls and the results of tools."""

from collections.abc import Callable
from typing import Any

from http_api.content_parts import TurnContent, read_content
from http_api.fields import Fields, as_integer, call_arguments, fields_of, require_text
from opensled.errors import InvalidRequest, Unsupported
from opensled.messages import ChatMessage, ModelInfo, Prompt, ToolCall
from opensled.thinking import KEYS

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


# Of a turn that no answer was: what must not be missed in silence.
HELD = (
    "tool_calls",
    "function_call",
    "images",
    "image",
    "image_url",
    "input_audio",
    "video",
    "files",
    "attachments",
)


def read_turns(value: object, sees: bool = False) -> tuple[ChatMessage, ...]:
    """The field `messages`; `sees`: whether the target reads pictures."""
    if not isinstance(value, list) or not value:
        raise InvalidRequest("messages must be a list with at least one message", "messages")
    return tuple(_turn(message, f"messages[{index}]", sees) for index, message in enumerate(value))


def _turn(value: object, where: str, sees: bool) -> ChatMessage:
    fields = fields_of(value, where)
    role = fields.text("role", "")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
    message = (_seen if sees and role == "user" else ROLES[role])(fields, role)
    fields.leave_rest(*(["function_call"] if role == "assistant" else HELD))
    return message


def _plain(fields: Fields, role: str) -> ChatMessage:
    text = read_content(fields.take("content"), fields.path("content")).text
    return ChatMessage(role, text, name=fields.text("name", ""))


def _seen(fields: Fields, role: str) -> ChatMessage:
    """A user's turn, the only one that may show pictures."""
    content = read_content(fields.take("content"), fields.path("content"), "image_url")
    return ChatMessage(role, content.text, name=fields.text("name", ""), images=content.images)


def _developer(fields: Fields, role: str) -> ChatMessage:
    """OpenAI's newer name of the role "system", which chat templates know."""
    return _plain(fields, "system")


def _assistant(fields: Fields, role: str) -> ChatMessage:
    """A turn of text, of calls, of both, or of nothing: an answer that ended at once."""
    calls = fields.take("tool_calls")
    calls = [] if calls is None else calls
    if not isinstance(calls, list):
        raise InvalidRequest(f"{fields.path('tool_calls')} must be a list", fields.path("tool_calls"))
    read = tuple(_call(call, fields.path(f"tool_calls[{index}]")) for index, call in enumerate(calls))
    refusal, said = fields.text("refusal", ""), _said(fields, thoughts=True)
    return ChatMessage(
        role,
        said.text or refusal,
        read,
        name=fields.text("name", ""),
        reasoning=_reasoning(fields) or said.thoughts,
    )


def _reasoning(fields: Fields) -> str:
    """The thoughts of an earlier answer, as one of the servers spells them that clients know."""
    for name in KEYS:
        value = fields.take(name)
        if isinstance(value, str) and value:
            for other in KEYS:
                fields.take(other)
            return require_text(value, fields.path(name))
    return ""


def _tool(fields: Fields, role: str) -> ChatMessage:
    call_id = require_text(fields.take("tool_call_id"), fields.path("tool_call_id"))
    return ChatMessage(role, _said(fields).text, tool_call_id=call_id, name=fields.text("name", ""))


ROLES: dict[str, Callable[[Fields, str], ChatMessage]] = {
    "system": _plain,
    "developer": _developer,
    "user": _plain,
    "assistant": _assistant,
    "tool": _tool,
}


def _call(value: object, where: str) -> ToolCall:
    fields = fields_of(value, where)
    if fields.text("type", "function") != "function":
        raise Unsupported(f"{where}.type must be function", f"{where}.type")
    call_id = require_text(fields.take("id"), f"{where}.id")
    inner = fields.inside("function")
    name = require_text(inner.take("name"), inner.path("name"))
    arguments = call_arguments(inner.take("arguments"), inner.path("arguments"))
    inner.leave_rest()
    fields.leave_rest()
    return ToolCall(call_id, name, arguments)


def _said(fields: Fields, thoughts: bool = False) -> TurnContent:
    """The content of an answer or of a result, which may have none; `thoughts`: as in `read_content`."""
    value: Any = fields.take("content")
    if value is None:
        return TurnContent("")
    return read_content(value, fields.path("content"), thoughts=thoughts)
