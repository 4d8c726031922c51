"""The body of /v1/messages and of /v1/messages/count_tokens, from JSON to a typed request.

The sampling fields of a chat that Anthropic does not have (`seed`, `stop`, ...) and `opensled` are extensions.
http_api/messages_api/message_schemas.py describes the fields.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from starlette.datastructures import Headers

from http_api.fields import Fields, fields_of
from http_api.guides import (
    NO_FORM,
    Form,
    make_guide,
    read_choice,
    read_format,
    read_schema,
    read_tools,
)
from http_api.left_out import leave_out
from http_api.messages_api.message_turns import read_messages
from http_api.model_names import asked_name
from http_api.requests import CLIENT_NAMES, Request, build_request, require_template
from http_api.sampling_fields import read_params, read_stop, token_limit
from http_api.thinking_fields import read_thinking
from opensled.core.answer import Task
from opensled.core.errors import InvalidRequest, NotFound
from opensled.core.messages import Guide, ModelInfo

VERSION = "anthropic-version"  # the header by which a client of this API is known
BETA = "anthropic-beta"  # names features that ask by fields of their own, so that the header alone asks for nothing
MODEL_VARIABLES = "ANTHROPIC_MODEL, ANTHROPIC_SMALL_FAST_MODEL and ANTHROPIC_DEFAULT_HAIKU_MODEL"
MAX_TEMPERATURE = 1

# A field that only Anthropic's own service can serve -> what to do instead
ELSEWHERE = {
    "container": "no code runs here: run it yourself, as a tool of yours",
    "thread": "no conversation is stored here: send all of its messages",
    "compaction": "ask for a summary in a message of your own",
    "mcp_servers": "no tool runs here: let your client call the MCP server, and list its tools in tools",
}
NAMES = {
    **CLIENT_NAMES,
    "prompt": "messages",
    "images": "messages",
    "response_format": "output_config.format",
}


def message_request(body: dict[str, Any], info: ModelInfo, headers: Headers) -> Request:
    """/v1/messages. Raises InvalidRequest, Unsupported or NotFound, with the field as the client spells it."""
    fields = Fields(body)
    _check_model(fields, info)
    if BETA in headers:
        leave_out(BETA)
    fields.refuse(ELSEWHERE)
    prompt = read_messages(fields, info.images)
    require_template(info, "messages")
    guide = _guide(fields, info)
    limit, _ = token_limit(fields, info, "max_tokens")
    params = read_params(fields, info, limit or info.limits.context_length)
    if params.temperature > MAX_TEMPERATURE:
        raise InvalidRequest("temperature is out of range: it must be from 0 to 1", "temperature")
    stop = read_stop(fields.take("stop_sequences"), "stop_sequences") + read_stop(fields.take("stop"))
    variables, shown = read_thinking(fields, info)
    task = Task(prompt, params, stop, guide=guide, template_variables=variables)
    return replace(build_request(fields, [task], 1, True, NAMES), shows_thoughts=shown)


def count_request(body: dict[str, Any], info: ModelInfo, headers: Headers) -> Request:
    """/v1/messages/count_tokens: the same request, for an answer of no tokens. Raises as `message_request` does."""
    request = message_request(body, info, headers)
    (task,) = request.tasks
    counted = replace(task, params=replace(task.params, max_tokens=0), drafts=False)
    return replace(request, tasks=(counted,), stream=False)


def _check_model(fields: Fields, info: ModelInfo) -> None:
    try:
        asked_name(fields, info)
    except NotFound as error:
        raise NotFound(
            f"{error}; in Claude Code, set {MODEL_VARIABLES} to {info.model_id}", "model"
        ) from error


def _guide(fields: Fields, info: ModelInfo) -> Guide | None:
    form = _form(fields)
    tools = read_tools(fields.take("tools"), custom=True)
    return make_guide(form, "output_config.format", *read_choice(fields, tools), info)


def _form(fields: Fields) -> Form:
    """The form of the answer, which earlier versions of the API asked for by `output_format`."""
    path, value = "output_format", fields.take("output_format")
    config = fields.inside_or_empty("output_config")
    if (asked := config.take("format")) is not None:
        path, value = config.path("format"), asked
    config.finish()
    if value is None:
        return NO_FORM
    return read_format(fields_of(value, path), partial(read_schema, named=False))
