"""The bodies of /api/chat and /api/generate: they become requests of the OpenAI API, whose readers check the values.

Their object `options` says how tokens are sampled, and how Ollama would load the model. Errors name the fields as
Ollama's clients spell them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from http_api import requests
from http_api.effects import EMPTY, is_any_of
from http_api.fields import Fields, as_integer, is_number, require_object
from http_api.guides import ANY_OBJECT, NO_FORM, Form, schema_text
from http_api.left_out import ignores, leave_out
from http_api.model_names import asked_name
from http_api.thinking_fields import EFFORT, KWARGS, NO_EFFORT
from opensled.core.answer import Task
from opensled.core.errors import InvalidRequest, RequestError, Unsupported
from opensled.core.messages import ModelInfo

# Of `options`: Ollama's name -> the name in the OpenAI API here
SERVED = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "seed": "seed",
    "stop": "stop",
    "num_predict": "max_tokens",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "repeat_last_n",
}
# Ollama's own defaults (`DefaultOptions` in its api/types.go), but for `repeat_penalty`, which is off here: it would
# change the text of a chat without being asked for.
DEFAULTS: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
# What Ollama takes for "no value".
UNSET = {"seed": (-1,), "num_predict": (0, -1, -2)}
OFF: dict[str, tuple[object, ...]] = {"vocab_only": (False,), "embedding_only": (False,)}
NO_TIME = re.compile(r"[+-]?0+(\.0*)?(ms|s|m|h)?")  # a duration of nothing: "0", "0s", "0.0"
# Fields of the OpenAI API that have another name here.
RENAMED = {
    **{ours: f"options.{theirs}" for theirs, ours in SERVED.items()},
    "max_completion_tokens": "options.num_predict",
    "response_format": "format",
    "enable_thinking": "think",
    EFFORT: "think",
    KWARGS: "think",
}
RENAMED_PROMPT = {
    **RENAMED,
    "messages": "prompt",
    # Behind the system's turn, if there is one
    **{f"messages[{index}].images": "images" for index in (0, 1)},
    "logprobs": "top_logprobs",
}

Reader = Callable[[dict[str, Any], ModelInfo], requests.Request]


@dataclass(frozen=True)
class OllamaRequest:
    """One validated request."""

    model: str  # as the client spells it
    is_chat: bool  # of /api/chat
    stream: bool
    unloads: bool  # without a prompt: the model may go, else it is to be loaded; nothing happens here
    request: requests.Request | None  # None = without a prompt
    renamed: Mapping[str, str]  # fields of the OpenAI API -> the client's

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What is asked for; nothing without a prompt."""
        return self.request.tasks if self.request else ()

    def respell(self, error: Exception) -> Exception:
        """`error` with the field it names as the client spells it."""
        known = self.request.respell(error) if self.request else error
        return _spell(known, self.renamed) if isinstance(known, RequestError) else known


def chat_request(body: dict[str, Any], info: ModelInfo) -> OllamaRequest:
    """/api/chat. Raises InvalidRequest, Unsupported or NotFound, with the field as the client spells it."""
    fields = Fields(body)
    turns = fields.take("messages")
    several = turns if isinstance(turns, list) else []
    filled = [{"content": "", **turn} if isinstance(turn, dict) else turn for turn in several]
    asked = {
        "messages": filled or turns,
        **{name: fields.raw(name) for name in ("tools", "tool_choice", "parallel_tool_calls")},
        **_thinking(fields, info),
    }
    has_prompt = turns is not None
    return _request(fields, info, asked if has_prompt else None, _chat_request, True)


def generate_request(body: dict[str, Any], info: ModelInfo) -> OllamaRequest:
    """/api/generate. Raises as `chat_request` does.

    The prompt is a user's turn behind the one of `system`. It goes to the target as it is with `raw`, or if the target
    has no chat template.
    """
    fields = Fields(body)
    prompt, system = fields.text("prompt", ""), fields.text("system", "")
    is_raw = fields.flag("raw", False) or not info.has_chat_template
    images = fields.take("images")
    if is_raw:
        if images is not None:
            needs = "raw" if info.has_chat_template else "this model"
            raise Unsupported(
                f"images need a chat, and {needs} takes a text as it is: leave one of the two out", "images"
            )
        if system:
            raise Unsupported("system needs a chat template: leave it out, or raw", "system")
        _thinking(fields, info)  # a text is continued, whatever it says
        raw: dict[str, Any] = {"prompt": prompt}
        return _request(fields, info, raw if prompt else None, _raw_request, False)
    turns = [{"role": "system", "content": system}] if system else []
    question = {"role": "user", "content": prompt, "images": images}
    asked = {"messages": [*turns, question], **_thinking(fields, info)}
    return _request(fields, info, asked if prompt else None, _chat_request, False)


def _spell(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """`error` with the field as `names` has it, and with that in its text: Ollama's errors are nothing else."""
    known = requests.rename_field(error, names)
    named = known.field in str(known)
    return known if named else type(error)(f"{known.field}: {known}", known.field, error.retry_after)


def _request(
    fields: Fields, info: ModelInfo, asked: dict[str, Any] | None, read: Reader, is_chat: bool
) -> OllamaRequest:
    """The other fields, which both kinds of requests share; `asked`: what `read` is to read besides, None = nothing."""
    model = asked_name(fields, info)
    shared = _shared_fields(fields)
    unloads = _no_time(fields.take("keep_alive"))
    stream = fields.flag("stream", True)
    fields.finish()
    renamed = RENAMED if is_chat else RENAMED_PROMPT
    try:
        request = None if asked is None else read({**shared, **asked}, info)
        if request:
            request.names["images"] = "images"
    except RequestError as error:
        raise _spell(error, renamed) from error
    return OllamaRequest(model, is_chat, stream, unloads, request, renamed)


def _shared_fields(fields: Fields) -> dict[str, Any]:
    """Fields of the OpenAI API."""
    for name in ("truncate", "shift"):  # a chat is never shortened: one that is too long is refused
        if fields.flag(name, False):
            leave_out(name)
    return {
        **sampling_fields(fields.take("options")),
        "format": fields.raw("format"),
        "logprobs": fields.flag("logprobs", False),
        "top_logprobs": fields.integer("top_logprobs"),
    }


def _chat_request(body: dict[str, Any], info: ModelInfo) -> requests.Request:
    return requests.chat_request(body, info, form_of)


def _thinking(fields: Fields, info: ModelInfo) -> dict[str, Any]:
    """The field `think`: true, false, or how much."""
    value = fields.raw("think")
    if value is None or is_any_of(value, EMPTY):
        return {}
    if not isinstance(value, bool | str):
        raise InvalidRequest("think must be true, false, low, medium or high", "think")
    if value not in (False, *NO_EFFORT) and info.thoughts is None:
        if not ignores("think"):
            raise Unsupported(
                f"{info.model_id!r} does not support thinking: leave think out, or false", "think"
            )
        return {}
    if isinstance(value, bool):
        return {"enable_thinking": value}
    if value in NO_EFFORT or EFFORT in info.template_variables:
        return {EFFORT: value}
    leave_out("think")  # how much, as the template reads no such variable
    return {"enable_thinking": True}


def _raw_request(body: dict[str, Any], info: ModelInfo) -> requests.Request:
    """A prompt as it is, up to the end of the context, as a request of /v1/completions."""
    if form_of(Fields(body)) != NO_FORM:
        raise Unsupported("format needs a chat: leave it out, or raw", "format")
    wanted, top, _ = (body.pop(name) for name in ("logprobs", "top_logprobs", "format"))
    if top and not wanted:
        raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
    more = {"logprobs": (top or 0) if wanted else None}
    return requests.completion_request({"max_tokens": info.limits.context_length, **body, **more}, info)


def form_of(fields: Fields) -> Form:
    """What the field `format` asks for: "json" or a JSON schema, which may be {}."""
    value = fields.raw("format")
    if isinstance(value, dict):
        return Form(schema_text(value, "format"))
    if value is not False and value != "json" and not is_any_of(value, EMPTY):
        raise InvalidRequest('format must be "json" or a JSON schema', "format")
    return Form(ANY_OBJECT) if value == "json" else NO_FORM


def _no_time(value: object) -> bool:
    """Whether `keep_alive` is 0. Other times change nothing: the server keeps its target."""
    if value is None or is_number(value):
        return value is not None and not value
    if not isinstance(value, str):
        raise InvalidRequest("keep_alive must be a number of seconds or a duration such as 5m", "keep_alive")
    return NO_TIME.fullmatch(value) is not None


def sampling_fields(value: object) -> dict[str, Any]:
    """`options` as fields of the OpenAI API, not checked yet. Raises Unsupported for an option that nothing reads."""
    fields = Fields({} if value is None else require_object(value, "options"), "options.")
    given = {
        ours: taken for theirs, ours in SERVED.items() if (taken := _read_option(fields, theirs)) is not None
    }
    for name, allowed in OFF.items():
        fields.only(name, *allowed)
    fields.finish()
    return {**DEFAULTS, **given}


def _read_option(fields: Fields, name: str) -> Any:
    value = fields.raw(name)
    return None if is_any_of(value, EMPTY) or as_integer(value) in UNSET.get(name, ()) else value
