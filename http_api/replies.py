"""The JSON schemas of responses, and what those of requests are made of."""

from typing import Any

from http_api.effects import EMPTY

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
TOLD: Schema = {"description": "A text, a list of parts, or any other JSON, which is read as a text."}
COUNT: Schema = {"anyOf": [{"enum": [-1]}, {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}]}


def optional(schema: Schema, about: str) -> Schema:
    """A field of a request, a text, a list or an object, that may be left out or empty; false is empty too."""
    return {"anyOf": [schema, one_of(*EMPTY, False)], "description": about}


def number(schema: Schema, about: str) -> Schema:
    """The same of a number, where false is none."""
    return {"anyOf": [schema, one_of(*EMPTY)], "description": about}


def elsewhere(remedies: dict[str, str]) -> Schema:
    """Fields that another service alone can serve, so that only empty ones are taken; each with what to do instead."""
    return {name: {**one_of(*EMPTY, False), "description": remedy} for name, remedy in remedies.items()}


def switch(about: str) -> Schema:
    """The same of a flag."""
    return {**one_of(True, False, 0, *EMPTY), "description": about}


def one_of(*values: object) -> Schema:
    """Exactly these values."""
    return {"enum": list(values)}


def closed_object(properties: Schema, *required: str, **more: object) -> Schema:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def request_object(properties: Schema, *required: str) -> Schema:
    """An object of a request with these fields; others are empty."""
    return {**closed_object(properties, *required), "additionalProperties": one_of(*EMPTY)}


def open_object(properties: Schema, *required: str) -> Schema:
    """An object with these fields; others are left out."""
    return {**closed_object(properties, *required), "additionalProperties": True}


def items(schema: Schema, low: int = 0, high: int | None = None) -> Schema:
    """A list of `low` to `high` such values."""
    bounds = {"minItems": low} if high is None else {"minItems": low, "maxItems": high}
    return {"type": "array", "items": schema, **bounds}


def ref(name: str) -> Schema:
    """The schema of that name among the components."""
    return {"$ref": f"#/components/schemas/{name}"}


NUMBER: Schema = {"type": "number"}
NATURAL: Schema = {"type": "integer", "minimum": 0}
THOUGHTS = {**TEXT, "description": "What the model thought before its answer; absent if it thought nothing."}
FINGERPRINT = {
    **TEXT,
    "description": "opensled-RELEASE/MODEL/NUMERICS/RULE: with it equal, equal seeds give equal answers. "
    "opensled-RELEASE/draft-model/local-only: text of the draft model alone, or of a relay's (relay-model), see "
    "local_tokens.",
}


def or_null(schema: Schema) -> Schema:
    """A field that is always there, and may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def every(properties: dict[str, Any]) -> Schema:
    """An object that has all of these fields and no others."""
    return closed_object(properties, *properties)


def components() -> Schema:
    """Those of responses."""
    return {
        "ChatCompletion": _response("chat.completion", _chat_choice()),
        "ChatCompletionChunk": _chunk("chat.completion.chunk", _chat_delta()),
        "Completion": _response("text_completion", _completion_choice("stop", "length")),
        "CompletionChunk": _chunk("text_completion", _completion_choice("stop", "length", None)),
        "Usage": _usage(),
        "Model": _model(),
        "ModelList": every({"object": one_of("list"), "data": items(ref("Model"), 1, 1)}),
        "Error": every({"error": _error()}),
        "Health": every(
            {"status": one_of("ok"), "server": one_of("reachable", "away", "loading", "refuses")}
        ),
        "Ready": every({"status": one_of("ready"), "server": one_of("reachable", "away")}),
        "Status": _status(),
        "Description": {
            "type": "object",
            "required": ["openapi", "info", "paths", "components"],
            "properties": {"openapi": one_of("3.1.0")},
        },
    }


def _status() -> Schema:
    rate = {"type": ["number", "null"], "minimum": 0}
    return every(
        {
            "drafting": {"type": "boolean"},
            "words": {**TEXT, "description": "how it drafts, and why"},
            "length": {**NATURAL, "description": "tokens of a draft block; 0 = it drafts nothing now"},
            "drafted_rate": {
                **rate,
                "description": "tokens/s of the latest answers with drafts; null = not known yet",
            },
            "plain_rate": {**rate, "description": "tokens/s of the latest answers without drafts"},
            "compared": {
                **NATURAL,
                "description": "tokens that were timed with drafts and without, the fewer",
            },
            "gain": {**rate, "description": "drafted_rate / plain_rate; null = too few tokens yet"},
            "gain_words": {**TEXT, "description": "the gain, or why it is not known"},
        }
    )


def _frame(kind: str, choice: Schema) -> Schema:
    return {
        "id": TEXT,
        "object": one_of(kind),
        "created": {**NATURAL, "description": "unix seconds"},
        "model": TEXT,
        "system_fingerprint": FINGERPRINT,
        "choices": items(choice),
    }


def _response(kind: str, choice: Schema) -> Schema:
    fields = {**_frame(kind, choice), "usage": ref("Usage")}
    return closed_object({**fields, **(_prompt_logprobs() if kind == "chat.completion" else {})}, *fields)


def _chunk(kind: str, choice: Schema) -> Schema:
    frame = _frame(kind, choice)
    return closed_object({**frame, "usage": or_null(ref("Usage"))}, *frame)


def _chat_choice() -> Schema:
    message = {
        "role": one_of("assistant"),
        "content": or_null(TEXT),
        "refusal": {"type": "null"},
        "reasoning_content": THOUGHTS,
        "tool_calls": items(_call(), 1),
    }
    return every(
        {
            "index": NATURAL,
            "message": closed_object(message, "role", "content", "refusal"),
            "logprobs": or_null(_chat_logprobs()),
            "finish_reason": one_of("stop", "length", "tool_calls"),
        }
    )


def _chat_delta() -> Schema:
    piece = closed_object(
        {
            "index": NATURAL,
            "id": TEXT,
            "type": one_of("function"),
            "function": closed_object({"name": TEXT, "arguments": TEXT}, "arguments"),
        },
        "index", "function",
    )  # fmt: skip
    delta = {
        "role": one_of("assistant"),
        "content": TEXT,
        "reasoning_content": TEXT,
        "tool_calls": items(piece, 1, 1),
    }
    return every(
        {
            "index": NATURAL,
            "delta": closed_object(delta),
            "logprobs": or_null(_chat_logprobs()),
            "finish_reason": one_of("stop", "length", "tool_calls", None),
        }
    )


def _call() -> Schema:
    function = every({"name": TEXT, "arguments": TEXT})
    return every(
        {"id": {"type": "string", "pattern": "^call_"}, "type": one_of("function"), "function": function}
    )


def _chat_logprobs() -> Schema:
    return every({"content": items(token_logprobs()), "refusal": {"type": "null"}})


def token_logprobs() -> Schema:
    """One token of an answer with its log-probability, and the likeliest in its place."""
    token = {
        "token": TEXT,
        "logprob": {**NUMBER, "description": "nats; the target's own, before temperature and masks"},
        "bytes": items({"type": "integer", "minimum": 0, "maximum": 255}),
    }
    return every({**token, "top_logprobs": items(every(token))})


def _completion_choice(*reasons: str | None) -> Schema:
    logprobs = every(
        {
            "tokens": items(TEXT),
            "token_logprobs": items(or_null(NUMBER)),
            "top_logprobs": items(or_null({"type": "object", "additionalProperties": NUMBER})),
            "text_offset": items(NATURAL),
        }
    )
    choice = {
        "index": NATURAL,
        "text": TEXT,
        "logprobs": or_null(logprobs),
        "finish_reason": one_of(*reasons),
    }
    return closed_object({**choice, **({} if None in reasons else _prompt_logprobs())}, *choice)


def _prompt_logprobs() -> Schema:
    """vLLM's form, where it is asked for."""
    rank = {"type": "integer", "minimum": 1, "description": "ids at least as likely, itself included"}
    place = every({"logprob": NUMBER, "rank": rank, "decoded_token": TEXT})
    places = items(or_null({"type": "object", "additionalProperties": place}))
    return {
        "prompt_logprobs": {**places, "description": "of each token of the prompt, by id; null = the first"}
    }


def _usage() -> Schema:
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    predictions = ("accepted_prediction_tokens", "rejected_prediction_tokens")
    return every(
        {
            **dict.fromkeys(counts, NATURAL),
            "prompt_tokens_details": every({"cached_tokens": cached_tokens()}),
            "completion_tokens_details": every(dict.fromkeys(("reasoning_tokens", *predictions), NATURAL)),
            "opensled": draft_figures(),
        }
    )


def cached_tokens() -> Schema:
    """What of a prompt was not computed."""
    return {**NATURAL, "description": "positions whose KV the server found in its prefix cache"}


def draft_figures() -> Schema:
    """How the drafts of an answer fared."""
    figures = {
        "rule": {**TEXT, "description": "acceptance rule; local-only: a part of the text is not verified"},
        "rounds": NATURAL,
        "drafted": NATURAL,
        "accepted": NATURAL,
        "loose": {
            **NATURAL,
            "description": "of the accepted, tokens that are not the target's own; 0 by every rule but loose ones",
        },
        "tokens_per_round": NUMBER,
        "wasted": NATURAL,
        "server_decoded": NATURAL,
        "local_tokens": {
            **NATURAL,
            "description": "written by the draft model or a relay's alone, while the target could not be reached",
        },
        "tokens_per_second": {
            **NUMBER,
            "description": "behind the first token; 0 = of one token there is no rate",
        },
        "first_token_seconds": {**NUMBER, "description": "from the request to the first token"},
    }
    return every(figures)


def _model() -> Schema:
    return every(
        {
            "id": TEXT,
            "object": one_of("model"),
            "created": NATURAL,
            "owned_by": TEXT,
            "max_model_len": {"type": "integer", "minimum": 1, "description": "tokens, prompt included"},
        }
    )


def _error() -> Schema:
    return every(
        {
            "message": TEXT,
            "type": one_of(
                "invalid_request_error", "authentication_error", "rate_limit_error", "server_error"
            ),
            "param": {**or_null(TEXT), "description": "the field, as the client spells it"},
            "code": {**TEXT, "description": "docs/protocol.md has those of the server"},
        }
    )
