"""What clients ask: /v1/chat/completions and /v1/completions, from JSON to a typed request.

Field by field after OpenAI's API reference; `top_k`, `ignore_eos` and `stop_token_ids` are the usual extensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edge_client.api.fields import Fields, require_object, require_text
from opensled.errors import InvalidRequest, NotFound, Unsupported
from opensled.messages import ChatMessage, ModelInfo, Prompt, SamplingParams

MAX_STOPS = 4
COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions; a chat goes on to the end of the context
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

# Fields that cannot change the answer. Those of the caller's own bookkeeping pass with any value.
BOOKKEEPING = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
# The others pass at the values that mean "as usual"; anything else would have to be obeyed.
AS_USUAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "logit_bias": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
CHAT_AS_USUAL: dict[str, tuple[object, ...]] = {
    **AS_USUAL,
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none",),
}
COMPLETION_AS_USUAL: dict[str, tuple[object, ...]] = {
    **AS_USUAL,
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
}
# Parts of a message that carry nothing when empty; clients send them when they repeat an earlier answer.
MESSAGE_EXTRAS = ("name", "refusal", "tool_calls", "tool_call_id", "function_call", "audio", "annotations")


@dataclass(frozen=True)
class Request:
    """One validated request."""

    prompt: Prompt
    params: SamplingParams
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool


def chat_request(body: dict[str, Any], info: ModelInfo) -> Request:
    fields = Fields(body)
    limit = _first_of(fields, "max_completion_tokens", "max_tokens")
    return _request(fields, info, _messages, limit or info.limits.context_length, CHAT_AS_USUAL)


def completion_request(body: dict[str, Any], info: ModelInfo) -> Request:
    fields = Fields(body)
    limit = _first_of(fields, "max_tokens")
    return _request(fields, info, _prompt, limit or COMPLETION_TOKENS, COMPLETION_AS_USUAL)


def _request(
    fields: Fields,
    info: ModelInfo,
    read_prompt: Callable[[Fields, ModelInfo], Prompt],
    max_tokens: int,
    as_usual: dict[str, tuple[object, ...]],
) -> Request:
    _check_model(fields, info)
    prompt = read_prompt(fields, info)
    params = SamplingParams(
        temperature=fields.number("temperature", 1.0),
        top_k=fields.integer("top_k") or 0,
        top_p=fields.number("top_p", 1.0),
        seed=fields.integer("seed"),
        max_tokens=max_tokens,
        stop_ids=_token_ids(fields.take("stop_token_ids") or [], "stop_token_ids", info),
        ignore_eos=fields.flag("ignore_eos", False),
    )
    stop = _stop(fields.take("stop"))
    stream = fields.flag("stream", False)
    include_usage = _stream_options(fields, stream)
    for name in BOOKKEEPING:
        fields.take(name)
    for name, allowed in as_usual.items():
        fields.only(name, *allowed)
    fields.finish()
    return Request(prompt, params, stop, stream, include_usage)


def _first_of(fields: Fields, *names: str) -> int | None:
    """The token limit, which has an old and a new name; None if not given."""
    found = {name: value for name in names if (value := fields.integer(name)) is not None}
    for name, value in found.items():
        if not 1 <= value < 2**31:
            raise InvalidRequest(f"{name} is out of range: it must be at least 1", name)
    if len(set(found.values())) > 1:
        raise InvalidRequest("max_tokens and max_completion_tokens disagree: give one of them", "max_tokens")
    return next(iter(found.values()), None)


def _check_model(fields: Fields, info: ModelInfo) -> None:
    model = fields.text("model", info.model_id)
    if model != info.model_id:
        raise NotFound(f"this device serves {info.model_id!r}, not {model[:80]!r}; GET /v1/models", "model")


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = value if isinstance(value, list) else [value]
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop may hold at most {MAX_STOPS} strings", "stop")
    texts = tuple(require_text(stop, "stop") for stop in stops)
    if "" in texts:
        raise InvalidRequest("stop must not hold an empty string", "stop")
    return texts


def _stream_options(fields: Fields, stream: bool) -> bool:
    value = fields.take("stream_options")
    if value is None:
        return False
    if not stream:
        raise InvalidRequest("stream_options needs stream: true", "stream_options")
    options = Fields(require_object(value, "stream_options"), "stream_options.")
    include_usage = options.flag("include_usage", False)
    options.only("include_obfuscation", False)
    options.finish()
    return include_usage


def _messages(fields: Fields, info: ModelInfo) -> Prompt:
    messages = fields.take("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a list with at least one message", "messages")
    if not info.has_chat_template:
        raise Unsupported(f"{info.model_id} has no chat template: use /v1/completions", "messages")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))


def _message(value: object, where: str) -> ChatMessage:
    fields = Fields(require_object(value, where), where + ".")
    role = fields.text("role", "")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
    content = _content(fields.take("content"), f"{where}.content")
    for name in MESSAGE_EXTRAS:
        fields.only(name, "", [])
    fields.finish()
    return ChatMessage(ROLES[role], content)


def _content(value: object, where: str) -> str:
    """A string, or the texts of a list of {"type": "text"} parts."""
    if not isinstance(value, list):
        return require_text(value, where)
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(value))


def _part(value: object, where: str) -> str:
    fields = Fields(require_object(value, where), where + ".")
    if fields.take("type") != "text":
        raise Unsupported(f"{where}.type must be text: this model reads nothing else", f"{where}.type")
    text = require_text(fields.take("text"), f"{where}.text")
    fields.finish()
    return text


def _prompt(fields: Fields, info: ModelInfo) -> Prompt:
    """Text or token ids; a list that holds one such prompt is that prompt."""
    value = fields.take("prompt")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, str):
        return require_text(value, "prompt")
    if isinstance(value, list) and any(isinstance(item, (str, list)) for item in value):
        raise Unsupported("prompt must be a single prompt: send one request for each", "prompt")
    if not value:
        raise InvalidRequest("prompt must be a string or a list of token ids", "prompt")
    return _token_ids(value, "prompt", info)


def _token_ids(value: object, name: str, info: ModelInfo) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(token) is not int for token in value):
        raise InvalidRequest(f"{name} must be a list of token ids", name)
    if any(not 0 <= token < info.vocab_size for token in value):
        raise InvalidRequest(f"{name} has an id outside the vocabulary of {info.vocab_size}", name)
    return tuple(value)
