"""The JSON schema of a request for a response: the fields and ranges that response_request.py reads."""

from http_api.content_parts import LABELS
from http_api.guide_schemas import NAMED, ONLY_TEXT, function, json_schema, no_tools, tools
from http_api.replies import COUNT, TEXT, Schema, closed, items, one_of, optional, ref
from http_api.response_api.input_items import ABSENT, PART_TYPES, ROLES, STATES
from http_api.response_api.response_request import (
    ELSEWHERE,
    INCLUDED,
    LOGPROBS,
    MAX_KEY,
    MAX_PAIRS,
    MAX_VALUE,
)
from http_api.schemas import DETAIL, PICTURE_URL, everywhere
from opensled.messages import GUIDE, MAX_TOP_LOGPROBS, ModelInfo

FUNCTION = one_of("function")


def components(info: ModelInfo) -> Schema:
    """Those of requests for responses, for a server that says `info`."""
    said = {
        "anyOf": [TEXT, items(ref("InputItem"), 1)],
        "description": "The user's words, or a conversation.",
    }
    fields = {"input": said, **everywhere(info), **_fields(), **_elsewhere()}
    guided = _guided() if GUIDE in info.capabilities else _unguided()
    return {
        "ResponseRequest": closed({**fields, **guided}, "input"),
        "InputItem": {"anyOf": [_message(info), _call(), _output()]},
    }


def _fields() -> Schema:
    about = f"Log-probabilities come with {LOGPROBS}, where no tool may be called."
    pairs = {
        "type": "object",
        "propertyNames": {"maxLength": MAX_KEY},
        "additionalProperties": {**TEXT, "maxLength": MAX_VALUE},
        "maxProperties": MAX_PAIRS,
    }
    return {
        "instructions": optional(TEXT, "A system turn before the input."),
        "max_output_tokens": optional(COUNT, "Most tokens of the answer."),
        "include": optional(items(one_of(*INCLUDED)), about),
        "top_logprobs": optional(
            {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
            f"With {LOGPROBS} only: of so many of the likeliest tokens, too.",
        ),
        "metadata": optional(pairs, "The caller's own; the answer repeats it."),
        "store": {**one_of(False, None), "description": "Nothing is stored here, also where it is left out."},
    }


def _elsewhere() -> Schema:
    """What other values these fields may have is served by OpenAI alone."""
    return {
        "background": one_of(False, None),
        "truncation": one_of("disabled", None),
        "reasoning": optional(
            closed({"effort": one_of("none", None), "summary": one_of(None)}), "No model reasons here."
        ),
        **{name: {**one_of(None), "description": remedy} for name, remedy in ELSEWHERE.items()},
    }


def _guided() -> Schema:
    forms = [
        closed({"type": one_of("text", "json_object")}, "type"),
        json_schema(type=one_of("json_schema")),
    ]
    chosen = closed({"type": FUNCTION, "name": NAMED}, "type", "name")
    return {**_text({"anyOf": forms}), **tools(function(type=FUNCTION), chosen)}


def _unguided() -> Schema:
    return {**_text(ONLY_TEXT), **no_tools()}


def _text(form: Schema) -> Schema:
    fields = {
        "format": optional(form, "Kept to by a grammar."),
        "verbosity": one_of("medium", None),
    }
    return {"text": optional(closed(fields), "The form of the answer.")}


def _item(kind: str, fields: Schema, *required: str) -> Schema:
    labels = {
        "id": optional(TEXT, "Not read."),
        "status": one_of(*STATES, None),
        **{name: one_of(None) for name in ABSENT[kind]},
    }
    return closed({**fields, **labels}, *required)


def _message(info: ModelInfo) -> Schema:
    content = _content(*([_picture()] if info.images else []))
    fields = {"type": one_of("message", None), "role": one_of(*ROLES), "content": content}
    return _item("message", fields, "role", "content")


def _call() -> Schema:
    texts = {"call_id": TEXT, "name": TEXT, "arguments": {**TEXT, "description": "A JSON object."}}
    return _item("function_call", {"type": one_of("function_call"), **texts}, "type", *texts)


def _output() -> Schema:
    fields = {"type": one_of("function_call_output"), "call_id": TEXT, "output": _content()}
    return _item("function_call_output", fields, *fields)


def _picture() -> Schema:
    fields = {"type": one_of("input_image"), "image_url": PICTURE_URL, "detail": DETAIL}
    return closed({**fields, "file_id": one_of(None)}, "type", "image_url")


def _content(*others: Schema) -> Schema:
    """A text, or a list of texts and `others`."""
    labels = {name: {"description": "Of an earlier answer; not read."} for name in LABELS}
    part = closed({"type": one_of(*PART_TYPES), "text": TEXT, **labels}, "type", "text")
    return {"anyOf": [TEXT, items({"anyOf": [part, *others]} if others else part)]}
