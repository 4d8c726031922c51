"""The JSON schemas of a response and of the events of its stream."""

from http_api.guide_schemas import choice, function, json_schema
from http_api.replies import (
    FINGERPRINT,
    FLAG,
    NATURAL,
    NUMBER,
    TEXT,
    Schema,
    cached_tokens,
    closed_object,
    draft_figures,
    every,
    items,
    one_of,
    or_null,
    ref,
    token_logprobs,
)
from http_api.response_api.input_items import STATES

ITEM_STATUS = one_of(*STATES)


def components() -> Schema:
    """Those of responses."""
    return {
        "Response": every({**_outcome(), **_repeated_fields(), **_always()}),
        "ResponseEvent": {"anyOf": [*_about_response(), *_about_items(), *_about_parts(), _error()]},
        "OutputItem": {"anyOf": [_message(), _thoughts(), _call()]},
        "OutputText": _part(),
    }


def _outcome() -> Schema:
    fault = every({"code": one_of("server_error", "rate_limit_exceeded", "invalid_prompt"), "message": TEXT})
    cut = every({"reason": one_of("max_output_tokens", None)})
    return {
        "id": {**TEXT, "pattern": "^resp_"},
        "object": one_of("response"),
        "created_at": {**NATURAL, "description": "unix seconds"},
        "completed_at": or_null(NATURAL),
        "status": one_of("in_progress", "completed", "incomplete", "failed"),
        "error": or_null(fault),
        "incomplete_details": {
            **or_null(cut),
            "description": "also where the context is full; its reason is null if a stop string cut a call or JSON",
        },
        "model": TEXT,
        "system_fingerprint": FINGERPRINT,
        "output": items(ref("OutputItem")),
        "usage": or_null(_usage()),
    }


def _repeated_fields() -> Schema:
    """What the request asked for."""
    forms = [
        every({"type": one_of("text", "json_object")}),
        json_schema(type=one_of("json_schema")),
    ]
    return {
        "instructions": or_null(TEXT),
        "max_output_tokens": or_null(NATURAL),
        "metadata": {"type": "object", "additionalProperties": TEXT},
        "parallel_tool_calls": FLAG,
        "reasoning": every({"effort": or_null(TEXT), "summary": one_of(None)}),
        "temperature": NUMBER,
        "text": every({"format": {"anyOf": forms}, "verbosity": one_of("medium")}),
        "tool_choice": choice(),
        "tools": items(function(type=one_of("function"))),
        "top_logprobs": NATURAL,
        "top_p": NUMBER,
    }


def _always() -> Schema:
    return {
        "background": one_of(False),
        "previous_response_id": one_of(None),
        "service_tier": one_of("default"),
        "store": {
            **one_of(False),
            "description": "No answer is stored here, so none can be asked for later.",
        },
        "truncation": one_of("disabled"),
    }


def _usage() -> Schema:
    cached = {
        "cached_tokens": cached_tokens(),
        "cache_write_tokens": {**one_of(0), "description": "not told"},
    }
    return every(
        {
            "input_tokens": NATURAL,
            "input_tokens_details": every(cached),
            "output_tokens": NATURAL,
            "output_tokens_details": every({"reasoning_tokens": NATURAL}),
            "total_tokens": NATURAL,
            "opensled": draft_figures(),
        }
    )


def _message() -> Schema:
    return every(
        {
            "id": {**TEXT, "pattern": "^msg_"},
            "type": one_of("message"),
            "status": ITEM_STATUS,
            "role": one_of("assistant"),
            "content": items(ref("OutputText"), 0, 1),
        }
    )


def _part() -> Schema:
    return every(
        {
            "type": one_of("output_text"),
            "text": TEXT,
            "annotations": items({}, 0, 0),
            "logprobs": items(token_logprobs()),
        }
    )


def _thoughts() -> Schema:
    return every(
        {
            "id": {**TEXT, "pattern": "^rs_"},
            "type": one_of("reasoning"),
            "status": ITEM_STATUS,
            "summary": items({}, 0, 0),
            "content": items(_thought(), 0, 1),
        }
    )


def _thought() -> Schema:
    return every({"type": one_of("reasoning_text"), "text": TEXT})


def _call() -> Schema:
    fields = {
        "id": {**TEXT, "pattern": "^fc_"},
        "type": one_of("function_call"),
        "status": ITEM_STATUS,
        "call_id": {**TEXT, "pattern": "^call_"},
        "name": TEXT,
        "arguments": TEXT,
    }
    return closed_object({**fields, "namespace": TEXT}, *fields)


def _event(kind: str, **fields: Schema) -> Schema:
    return every({"type": one_of(kind), "sequence_number": NATURAL, **fields})


def _about_response() -> list[Schema]:
    kinds = ("created", "in_progress", "completed", "incomplete", "failed")
    return [_event(f"response.{kind}", response=ref("Response")) for kind in kinds]


def _about_items() -> list[Schema]:
    kinds = ("added", "done")
    return [
        _event(f"response.output_item.{kind}", output_index=NATURAL, item=ref("OutputItem")) for kind in kinds
    ]


def _about_parts() -> list[Schema]:
    place = {"item_id": TEXT, "output_index": NATURAL}
    text = {**place, "content_index": one_of(0)}
    logprobs, part = items(token_logprobs()), {"anyOf": [ref("OutputText"), _thought()]}
    return [
        _event("response.content_part.added", **text, part=part),
        _event("response.content_part.done", **text, part=part),
        _event("response.reasoning_text.delta", **text, delta=TEXT),
        _event("response.reasoning_text.done", **text, text=TEXT),
        _event("response.output_text.delta", **text, delta=TEXT, logprobs=logprobs),
        _event("response.output_text.done", **text, text=TEXT, logprobs=logprobs),
        _event("response.function_call_arguments.delta", **place, delta=TEXT),
        _event("response.function_call_arguments.done", **place, name=TEXT, arguments=TEXT),
    ]


def _error() -> Schema:
    return _event("error", code=TEXT, message=TEXT, param=or_null(TEXT))
