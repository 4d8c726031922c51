"""The JSON schemas of Anthropic's API: the fields that message_request.py reads, and what message_reply.py tells."""

from http_api.effects import EMPTY
from http_api.error_forms import BY_CODE
from http_api.guide_schemas import NAME, ONLY_TEXT, STRICT, choice, json_schema
from http_api.messages_api.message_reply import STOP_REASONS
from http_api.messages_api.message_request import ELSEWHERE, MAX_TEMPERATURE
from http_api.messages_api.message_turns import CALL, RESULT
from http_api.replies import (
    COUNT,
    NATURAL,
    TEXT,
    TOLD,
    Schema,
    closed_object,
    draft_figures,
    elsewhere,
    every,
    items,
    number,
    one_of,
    open_object,
    optional,
    or_null,
    ref,
    request_object,
    switch,
)
from http_api.sampling_fields import MAX_STOPS
from http_api.schemas import CALL_ID, RESULT_ID, arguments, content, everywhere, thinking, without_effect
from opensled.core.bounds import MAX_TOOLS
from opensled.core.messages import GUIDE, MIN_TEMPERATURE, ModelInfo

TOOL_HINTS = ("cache_control", "input_examples", "defer_loading", "allowed_callers", "eager_input_streaming")
ERRORS = ("invalid_request_error", "authentication_error", "rate_limit_error", "api_error", *BY_CODE.values())


def components(info: ModelInfo) -> Schema:
    """Those of this API, for a server that says `info`."""
    guided = _fields_with_guide() if GUIDE in info.capabilities else _fields_without_guide()
    return {
        "MessageRequest": request_object(
            {**everywhere(info), **thinking(), **_fields(), **guided}, "messages"
        ),
        "MessageTurn": {"anyOf": _turns(info)},
        "AnthropicMessage": _message(),
        "MessageEvent": {"anyOf": _events()},
        "MessageError": _error(),
        "TokenCount": every({"input_tokens": NATURAL}),
    }


def _fields() -> Schema:
    warm = {"type": "number", "minimum": MIN_TEMPERATURE, "maximum": MAX_TEMPERATURE}
    return {
        "messages": {**items(ref("MessageTurn"), 1), "description": "The last one is not the assistant's."},
        "system": {**content(), "description": "Before the messages."},
        "max_tokens": number(COUNT, "Most tokens of the answer."),
        "stop_sequences": optional(
            {"anyOf": [TEXT, items(TEXT, 0, MAX_STOPS)]}, "Strings that end an answer."
        ),
        "temperature": number({"anyOf": [one_of(0), warm]}, "0 takes the likeliest token. 1 if left out."),
        **elsewhere(ELSEWHERE),
    }


def _fields_with_guide() -> Schema:
    form = json_schema(type=one_of("json_schema"))
    form = request_object(
        {name: field for name, field in form["properties"].items() if name != "name"}, "type"
    )
    forms = optional(
        {"anyOf": [ONLY_TEXT, request_object({"type": one_of("json_object")}, "type"), form]},
        "Kept to by a grammar.",
    )
    config = request_object({**without_effect(), "format": forms})
    return {
        "tools": optional(items({"anyOf": [_tool(), _other_tool()]}, 0, MAX_TOOLS), "Each name once."),
        "tool_choice": choice(),
        "output_config": optional(config, "The form of the answer."),
        "output_format": {**forms, "description": "As output_config.format, which goes before it."},
    }


def _fields_without_guide() -> Schema:
    text = optional(ONLY_TEXT, "Only text at this server.")
    return {
        "tools": optional(items({}, 0, 0), "None at this server."),
        "tool_choice": one_of("auto", "none", {"type": "auto"}, {"type": "none"}, *EMPTY, False),
        "output_config": optional(
            request_object({**without_effect(), "format": text}), "The form of the answer."
        ),
        "output_format": text,
    }


def _tool() -> Schema:
    fields = {
        "type": one_of("custom", *EMPTY, False),
        "name": NAME,
        "description": optional(TEXT, "For the model."),
        "input_schema": optional({"type": "object"}, "JSON schema of the input, an object."),
        "strict": switch(STRICT),
        **{name: {} for name in TOOL_HINTS},
    }
    return request_object(fields, "name")


def _other_tool() -> Schema:
    kind = {"type": "string", "minLength": 1, "not": one_of("custom", "function")}
    about = "Anthropic's own tools are left out, and named in OpenSLED-Ignored."
    return {**open_object({"type": kind}, "type"), "description": about}


def _turns(info: ModelInfo) -> list[Schema]:
    """Fields that are not listed are left out."""
    pictures = [_picture()] if info.images else []
    call = {"type": one_of(CALL), "id": optional(TEXT, CALL_ID), "name": TEXT, "input": arguments()}
    result = {
        "type": one_of(RESULT),
        "tool_use_id": optional(TEXT, RESULT_ID),
        "content": TOLD,
        "is_error": switch('The result begins with "Error: " then.'),
    }
    said = {
        "system": content(),
        "user": content(*pictures, open_object(result, "type"), strict=(RESULT,)),
        "assistant": content(open_object(call, "type", "name"), strict=(CALL,)),
    }
    return [open_object({"role": one_of(role), "content": told}, "role") for role, told in said.items()]


def _picture() -> Schema:
    inline = open_object({"type": one_of("base64", *EMPTY, False), "data": TEXT}, "data")
    by_url = open_object({"type": one_of("url"), "url": {**TEXT, "pattern": "^data:"}}, "type", "url")
    return open_object({"type": one_of("image"), "source": {"anyOf": [inline, by_url]}}, "type", "source")


def _message() -> Schema:
    return every(
        {
            "id": {**TEXT, "pattern": "^msg_"},
            "type": one_of("message"),
            "role": one_of("assistant"),
            "model": TEXT,
            "content": items({"anyOf": _blocks()}),
            **_stop(),
            "usage": _usage(),
        }
    )


def _blocks() -> list[Schema]:
    call = {"type": one_of("tool_use"), "id": {**TEXT, "pattern": "^toolu_"}, "name": TEXT}
    thought = {"type": one_of("thinking"), "thinking": TEXT, "signature": one_of("")}
    return [
        every({"type": one_of("text"), "text": TEXT}),
        every({**call, "input": {"type": "object"}}),
        every(thought),
    ]


def _stop() -> Schema:
    reasons = one_of(*STOP_REASONS.values(), "stop_sequence", None)
    return {
        "stop_reason": reasons,
        "stop_sequence": {**or_null(TEXT), "description": "the one that ended it"},
    }


def _usage() -> Schema:
    counts = {
        "input_tokens": {
            **NATURAL,
            "description": "without those found in the cache; 0 at the start of a stream",
        },
        "cache_creation_input_tokens": one_of(0),
        "cache_read_input_tokens": {
            **NATURAL,
            "description": "positions whose KV the server found in its cache",
        },
        "output_tokens": NATURAL,
    }
    return closed_object({**counts, "opensled": draft_figures()}, *counts)


def _events() -> list[Schema]:
    def event(kind: str, **fields: Schema) -> Schema:
        return every({"type": one_of(kind), **fields})

    texts = [("text_delta", "text"), ("input_json_delta", "partial_json"), ("thinking_delta", "thinking")]
    deltas = {"anyOf": [every({"type": one_of(kind), piece: TEXT}) for kind, piece in texts]}
    return [
        event("message_start", message=ref("AnthropicMessage")),
        event("content_block_start", index=NATURAL, content_block={"anyOf": _blocks()}),
        event("content_block_delta", index=NATURAL, delta=deltas),
        event("content_block_stop", index=NATURAL),
        event("message_delta", delta=every(_stop()), usage=_usage()),
        event("message_stop"),
        event("ping"),
        ref("MessageError"),
    ]


def _error() -> Schema:
    told = closed_object(
        {"type": one_of(*ERRORS), "message": TEXT, "details": {"type": "object"}}, "type", "message"
    )
    return every({"type": one_of("error"), "error": told, "request_id": or_null(TEXT)})
