"""The body of /v1/responses, from JSON to a typed request.

It asks for what a chat asks for, in words of its own. The sampling fields of a chat that OpenAI does not have here
(`top_k`, `seed`, `stop`, ...) and `opensled` are extensions. http_api/response_api/response_schemas.py describes the
fields.
"""

from dataclasses import replace
from typing import Any

from http_api.content_parts import Place, read_content
from http_api.effects import is_nothing
from http_api.fields import Fields, fields_of
from http_api.guides import (
    NO_FORM,
    arguments_schema,
    functions,
    make_guide,
    read_choice,
    read_format,
    read_schema,
    read_spaces,
)
from http_api.model_names import asked_name
from http_api.requests import (
    CLIENT_NAMES,
    Request,
    build_request,
    require_template,
)
from http_api.response_api.input_items import read_input
from http_api.sampling_fields import NO_LIMIT, read_params, read_stop, token_limit
from http_api.thinking_fields import read_thinking
from opensled.core.answer import Task
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import ChatMessage, Guide, ModelInfo, Tool

LOGPROBS = "message.output_text.logprobs"
# Thoughts are told in clear, and no answer comes from such a tool, so what belongs to them is never missing.
INCLUDED = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512  # of metadata, as OpenAI has it

# A field that only OpenAI's own service can serve -> what to do instead.
ELSEWHERE = {
    "previous_response_id": "no answer is stored here: send the earlier items in input",
    "conversation": "no conversation is stored here: send its items in input",
    "prompt": "no prompt is stored here: send its text in instructions and input",
}
NAMES = {
    **CLIENT_NAMES,
    "prompt": "input",
    "messages": "input",
    "images": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}


def response_request(body: dict[str, Any], info: ModelInfo) -> Request:
    """/v1/responses. Raises InvalidRequest, Unsupported or NotFound, with the field as the client spells it."""
    fields = Fields(body)
    asked_name(fields, info)
    fields.refuse(ELSEWHERE)
    fields.only("background", False)
    prompt = _instructions(fields) + read_input(fields.raw("input"), info.images)
    require_template(info, "input")
    tools, spaces = read_spaces(fields.take("tools"))
    guide = _guide(fields, tools, info)
    limit, _ = token_limit(fields, info, "max_output_tokens")
    params = read_params(fields, info, limit or info.limits.context_length)
    variables, shown = read_thinking(fields, info)
    stop, logprobs = read_stop(fields.take("stop")), _logprobs(fields, guide)
    task = Task(prompt, params, stop, logprobs, guide, template_variables=variables)
    request = build_request(fields, [task], 1, True, NAMES)
    return replace(request, repeated=_repeated_fields(body, task), namespaces=spaces, shows_thoughts=shown)


def _instructions(fields: Fields) -> tuple[ChatMessage, ...]:
    said = read_content(fields.text("instructions", ""), "instructions", Place(role="system"))
    return () if said.is_empty else (said.turn("system"),)


def _guide(fields: Fields, tools: tuple[Tool, ...], info: ModelInfo) -> Guide | None:
    text = fields.inside_or_empty("text")
    asked = text.take("format")
    text.finish()
    form = NO_FORM if asked is None else read_format(fields_of(asked, "text.format"), read_schema)
    return make_guide(form, "text.format", *read_choice(fields, tools), info)


def _logprobs(fields: Fields, guide: Guide | None) -> int | None:
    """How many of the likeliest tokens to report at each position; None: no log-probabilities."""
    included = _read_include(fields.take("include"))
    top = fields.read("top_logprobs").get("top_logprobs", 0)
    if LOGPROBS not in included:
        if top:
            raise InvalidRequest(f'top_logprobs needs include: ["{LOGPROBS}"]', "top_logprobs")
        return None
    if guide is not None and guide.tools and guide.tool_choice != "none":
        raise Unsupported(
            "tool calls have no log-probabilities: leave include or the tools out",
            "include",
        )
    return top


def _read_include(value: object) -> list[object]:
    """The field `include`; raises Unsupported for what no answer here can have."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest("include must be a list of strings", "include")
    for wanted in value:
        if wanted not in INCLUDED:
            raise Unsupported(f"include may hold {' and '.join(INCLUDED)} only", "include")
    return value


def _metadata(value: object) -> dict[str, str]:
    """What the answer repeats: all, if clients can read it."""
    pairs = value if isinstance(value, dict) else {}
    small = len(pairs) <= MAX_PAIRS and all(
        len(key) <= MAX_KEY and isinstance(text, str) and len(text) <= MAX_VALUE
        for key, text in pairs.items()
    )
    return pairs if small else {}


def _repeated_fields(body: dict[str, Any], task: Task) -> dict[str, Any]:
    """The fields of a valid request that the answer repeats, with what was left out as it was taken."""
    given = _drop_empty(body)
    limit = given.get("max_output_tokens")
    return {
        "instructions": given.get("instructions"),
        "max_output_tokens": None if limit == NO_LIMIT else limit,
        "metadata": _metadata(given.get("metadata")),
        "parallel_tool_calls": Fields(body).flag("parallel_tool_calls", True),
        "reasoning": {"effort": _drop_empty(given.get("reasoning", {})).get("effort"), "summary": None},
        "temperature": task.params.temperature,
        "text": {
            "format": _repeated_form(_drop_empty(given.get("text", {})).get("format", {})),
            "verbosity": "medium",
        },
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": [
            {
                "type": "function",
                **{name: tool.take(name) for name in ("name", "description")},
                "parameters": arguments_schema(tool)[1],
                "strict": tool.flag("strict", False),
            }
            for tool, _ in functions(given.get("tools"))
        ],
        "top_logprobs": task.top_logprobs or 0,
        "top_p": float(given.get("top_p", 1)),
    }


def _repeated_form(form: dict[str, Any]) -> dict[str, Any]:
    given = _drop_empty(form)
    kind = {"type": given.get("type", "text")}
    if kind["type"] != "json_schema":
        return kind
    more = {"schema": given.get("schema", {}), "strict": bool(given.get("strict"))}
    return {**kind, **{name: given[name] for name in ("name", "description") if name in given}, **more}


def _drop_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if not is_nothing(value)}
