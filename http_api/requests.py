"""The bodies of /v1/chat/completions and /v1/completions, from JSON to typed requests.

The fields are those of OpenAI's API reference; `top_k`, `min_p`, `repetition_penalty`, `ignore_eos` and
`stop_token_ids` are common extensions, and `opensled` holds our own: how an answer is served
(`extra_body={"opensled": {"pace": 20}}` in the clients).
http_api/asked_fields.py and http_api/schemas.py describe the fields.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from http_api.chat_messages import read_prompts, read_turns
from http_api.fields import Fields, fields_of
from http_api.guides import Form, make_guide, read_calls, read_form
from http_api.left_out import leave_out
from http_api.model_names import asked_name
from http_api.sampling_fields import read_params, read_stop, seed_choice, token_limit
from http_api.thinking_fields import KWARGS, read_thinking
from opensled.core.answer import Task
from opensled.core.errors import InvalidRequest, RequestError, Unsupported
from opensled.core.messages import MAX_PACE, ModelInfo

COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions; a chat goes on to the end of the context

# The server's names of fields of `Open` for which clients have other names.
CLIENT_NAMES = {
    "stop_ids": "stop_token_ids",
    "model_id": "model",
    "pace": "opensled.pace",
    "background": "opensled.background",
    "template_variables": KWARGS,
}


@dataclass(frozen=True)
class Request:
    """One validated request; choice i is the answer to `tasks[i]`, and each prompt has `per_prompt` of them."""

    tasks: tuple[Task, ...]
    per_prompt: int
    stream: bool
    include_usage: bool
    is_chat: bool
    echo: bool = False  # the prompt goes before the answer
    shows_thoughts: bool = True  # the answer has them, apart from its text
    prompt_logprobs: int | None = None  # of the likeliest tokens in vLLM's form; None = it is not asked for
    names: dict[str, str] = field(default_factory=dict)  # a server's name of a field -> the client's
    repeated: dict[str, Any] = field(default_factory=dict)  # fields of the request that the answer repeats
    # A function's name as the model knows it -> its namespace, and its name there
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)

    def respell(self, error: Exception) -> Exception:
        """`error` with the field it names as the client spells it."""
        return rename_field(error, self.names) if isinstance(error, RequestError) else error


def rename_field(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """`error` with the field as `names` has it, also in its text, but for names that are words there."""
    field = error.field
    head = max(
        (name for name in names if re.match(rf"{re.escape(name)}(?![\w-])", field)), key=len, default=""
    )
    name, text = names.get(head, "") + field[len(head) :], str(error)
    if head and field not in ("prompt", "images"):
        first = "" if re.search(r"[_.\[]", field) else r"\A"
        text = re.sub(rf"{first}(?<![\w.]){re.escape(field)}(?![\w-])", lambda _: name, text)
    return type(error)(text, name, error.retry_after)


def chat_request(
    body: dict[str, Any], info: ModelInfo, form_of: Callable[[Fields], Form] = read_form
) -> Request:
    """/v1/chat/completions; `form_of` reads the form of the answer.

    Raises InvalidRequest, Unsupported or NotFound, with the field as the client spells it.
    """
    fields = Fields(body)
    asked_name(fields, info)
    prompt = read_turns(fields.take("messages"), info.images)
    require_template(info, "messages")
    guide = make_guide(form_of(fields), "response_format", *read_calls(fields), info)
    asked = fields.read("chat")
    told = asked.get("prompt_logprobs")
    names_of_limit = ("max_completion_tokens", "max_tokens")
    limit, name = token_limit(fields, info, *names_of_limit, may_be_none=told is not None)
    params = read_params(fields, info, info.limits.context_length if limit is None else limit)
    variables, shown = read_thinking(fields, info)
    stop, top = read_stop(fields.take("stop")), _chat_logprobs(asked)
    task = Task(prompt, params, stop, top, guide, template_variables=variables, prompt_logprobs=told)
    names = {**CLIENT_NAMES, "prompt": "messages", "images": "messages", "max_tokens": name}
    request = build_request(fields, [task], asked.get("n", 1), True, names)
    return replace(_add_prompt_logprobs(request, told), shows_thoughts=shown)


def completion_request(body: dict[str, Any], info: ModelInfo) -> Request:
    """/v1/completions. Raises as `chat_request` does."""
    if body.get("logprobs") is False:  # as chats spell none
        body = {**body, "logprobs": None}
    fields = Fields(body)
    asked_name(fields, info)
    prompts = read_prompts(fields.raw("prompt"), info)
    asked = fields.read("completion")
    echo, told, logprobs = asked.get("echo", False), asked.get("prompt_logprobs"), asked.get("logprobs")
    limit, _ = token_limit(fields, info, "max_tokens", may_be_none=echo or told is not None)
    params = read_params(fields, info, COMPLETION_TOKENS if limit is None else limit)
    stop, wanted = read_stop(fields.take("stop")), told
    if echo and (logprobs is not None or limit == 0):
        wanted = max(told or 0, logprobs or 0)
    tasks = [Task(prompt, params, stop, logprobs, prompt_logprobs=wanted) for prompt in prompts]
    shown = {"prompt_logprobs": "logprobs"} if told is None else {}
    names = {**CLIENT_NAMES, "top_logprobs": "logprobs", **shown}
    best_of = fields.integer("best_of")
    request = build_request(fields, tasks, asked.get("n", 1), False, names)
    if best_of not in (None, 1, request.per_prompt):
        raise Unsupported(
            "best_of must be 1 or equal to n: choosing among more answers is not supported", "best_of"
        )
    return replace(_add_prompt_logprobs(request, told), echo=echo)


def build_request(
    fields: Fields,
    tasks: list[Task],
    count: int,
    is_chat: bool,
    names: dict[str, str],
) -> Request:
    """The request of `count` answers to each task: reads the fields that all kinds share, and refuses the rest."""
    stream = fields.read("delivery").get("stream", False)
    include_usage = _wants_usage(fields, stream)
    service = _service(fields)
    fields.finish()
    choices = [
        replace(task, params=seed_choice(task.params, number), **service)
        for task in tasks
        for number in range(count)
    ]
    return Request(tuple(choices), count, stream, include_usage, is_chat, names=names)


def require_template(info: ModelInfo, name: str) -> None:
    """Raises Unsupported for the field `name`, which holds a chat, if the model has no chat template."""
    if not info.has_chat_template:
        raise Unsupported(
            f"{name} needs a chat template, and {info.model_id} has none: use /v1/completions or /api/generate",
            name,
        )


def _chat_logprobs(asked: Mapping[str, Any]) -> int | None:
    """How many of the likeliest tokens to report at each position; None: no log-probabilities."""
    wanted, top = asked.get("logprobs", False), asked.get("top_logprobs", 0)
    if top and not wanted:
        raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
    return top if wanted else None


def _add_prompt_logprobs(request: Request, told: int | None) -> Request:
    """With log-probabilities of the prompt in vLLM's form, of so many of the likeliest tokens; None: without."""
    if told is not None and request.stream:
        raise Unsupported(
            "prompt_logprobs cannot be streamed: leave stream out, or use /v1/completions with echo and logprobs",
            "prompt_logprobs",
        )
    return replace(request, prompt_logprobs=told)


def _service(fields: Fields) -> dict[str, Any]:
    """The fields of a `Task` that the field `opensled` states; None in one of them: the backend's default."""
    inner = fields.inside_or_empty("opensled")
    asked = {"pace": None, "background": None, "drafts": True, **inner.read("opensled")}
    if not 0 <= (asked["pace"] or 0) <= MAX_PACE:
        raise InvalidRequest(
            f"opensled.pace is out of range: it must be from 0 to {MAX_PACE:g} tokens/s", "opensled.pace"
        )
    inner.finish()
    return asked


def _wants_usage(fields: Fields, stream: bool) -> bool:
    value = fields.take("stream_options")
    options = fields_of({} if value is None else value, "stream_options")
    asked = options.read("stream_options")
    options.finish()
    if value is not None and not stream:
        leave_out("stream_options")
    return stream and asked.get("include_usage", False)
