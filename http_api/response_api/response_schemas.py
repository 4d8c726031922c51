"""The JSON schema of a request for a response: the fields and ranges that response_request.py reads."""

from http_api.effects import EMPTY
from http_api.guide_schemas import FUNCTION, NAME, ONLY_TEXT, OTHER, function, json_schema, no_tools, tools
from http_api.replies import (
    COUNT,
    TEXT,
    TOLD,
    Schema,
    elsewhere,
    items,
    number,
    one_of,
    open_object,
    optional,
    ref,
    request_object,
)
from http_api.response_api.input_items import OUTPUTS, READERS, ROLES
from http_api.response_api.response_request import ELSEWHERE, INCLUDED, LOGPROBS
from http_api.schemas import (
    CALL_ID,
    RESULT_ID,
    arguments,
    content,
    everywhere,
    picture,
    thinking,
    without_effect,
)
from opensled.core.messages import GUIDE, MAX_TOP_LOGPROBS, ModelInfo


def components(info: ModelInfo) -> Schema:
    """Those of requests for responses, for a server that says `info`."""
    said = {
        "anyOf": [TEXT, items(ref("InputItem"), 1)],
        "description": "The user's words, or a conversation.",
    }
    fields = {"input": said, **everywhere(info), **_fields()}
    guided = _fields_with_guide() if GUIDE in info.capabilities else _fields_without_guide()
    return {
        "ResponseRequest": request_object({**fields, **guided}, "input"),
        "InputItem": {"anyOf": [*_message(info), *_calls(), _output(), _other_item()]},
    }


def _fields() -> Schema:
    about = f"Log-probabilities come with {LOGPROBS}, where no tool may be called."
    return {
        "instructions": optional(TEXT, "A system turn before the input."),
        "max_output_tokens": number(COUNT, "Most tokens of the answer."),
        "include": optional(items(one_of(*INCLUDED)), about),
        "top_logprobs": number(
            {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
            f"With {LOGPROBS} only: of so many of the likeliest tokens, too.",
        ),
        **thinking(),
        "metadata": {"description": "The caller's own; the answer repeats texts of a usual size."},
        "store": {"description": "Nothing is stored here."},
        "background": one_of(False, *EMPTY),
        **elsewhere(ELSEWHERE),
    }


def _fields_with_guide() -> Schema:
    forms = [
        request_object({"type": one_of("json_object")}, "type"),
        ONLY_TEXT,
        json_schema(type=one_of("json_schema")),
    ]
    tool = function(type=FUNCTION)
    inner = items({"anyOf": [tool, OTHER]})
    space = {"type": one_of("namespace"), "name": NAME, "description": optional(TEXT, "Left out.")}
    space["tools"] = optional(inner, "As beside it; all names in all namespaces are told apart.")
    return {
        **_text({"anyOf": forms}),
        **tools({"anyOf": [tool, request_object(space, "type", "name")]}),
    }


def _fields_without_guide() -> Schema:
    return {**_text(ONLY_TEXT), **no_tools()}


def _text(form: Schema) -> Schema:
    fields = {
        "format": optional(form, "Kept to by a grammar."),
        **without_effect(),
    }
    return {"text": optional(request_object(fields), "The form of the answer.")}


def _message(info: ModelInfo) -> list[Schema]:
    kind, said = (
        {"type": one_of("message", *EMPTY, False)},
        content(*([picture("input_image")] if info.images else [])),
    )
    asked = {**kind, "role": one_of(*(role for role in ROLES if role != "assistant")), "content": said}
    return [
        open_object(asked, "role", "content"),
        open_object({**kind, "role": one_of("assistant"), "content": said}, "role"),
    ]


def _other_item() -> Schema:
    """What services of others did, as text."""
    kind = {**TEXT, "minLength": 1, "not": one_of("message", *READERS)}
    return open_object({"type": kind}, "type")


def _calls() -> list[Schema]:
    named = {"call_id": optional(TEXT, CALL_ID), "name": TEXT}
    call = {"type": one_of("function_call"), **named, "arguments": arguments()}
    custom = {"type": one_of("custom_tool_call"), **named, "input": optional(TEXT, "")}
    return [open_object(call, "type", "name"), open_object(custom, "type", "name")]


def _output() -> Schema:
    named = {"call_id": optional(TEXT, RESULT_ID), "name": optional(TEXT, "")}
    return open_object({"type": one_of(*OUTPUTS), **named, "output": TOLD}, "type")
