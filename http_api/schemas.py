"""The JSON schemas of requests: the fields and ranges that requests.py and its helpers read."""

from http_api.chat_messages import HELD, MAX_PROMPTS
from http_api.content_parts import DETAILS, TEXTS, THOUGHTS
from http_api.effects import ANNOTATIONS, OFF, OFF_OR_UNKNOWN, off_values
from http_api.guide_schemas import guided
from http_api.replies import COUNT, FLAG, TEXT, Schema, closed, items, one_of, opened, optional, ref
from http_api.requests import COMPLETION_TOKENS, MAX_COMPLETION_LOGPROBS
from http_api.sampling_fields import MAX_CHOICES, MAX_STOP_IDS, MAX_STOPS
from opensled.messages import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_PACE,
    MAX_PENALTY,
    MAX_TOP_LOGPROBS,
    MIN_REPETITION,
    MIN_TEMPERATURE,
    PENALTIES,
    ModelInfo,
)

LIMIT: Schema = {"anyOf": [*COUNT["anyOf"], one_of(0)]}  # where a prompt can be shown without an answer


def components(info: ModelInfo) -> Schema:
    """Those of requests, for a server that says `info`."""
    return {
        "ChatRequest": closed(
            {
                "messages": items(ref("Message"), 1),
                **_common(info),
                **_chat_only(),
                **guided(info),
            },
            "messages",
        ),
        "CompletionRequest": closed(
            {"prompt": _prompt(info), **_common(info), **_completion_only()}, "prompt"
        ),
        "Message": {"anyOf": _messages(info)},
    }


def _token(info: ModelInfo) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": info.vocab_size - 1}


def _common(info: ModelInfo) -> Schema:
    return {
        **everywhere(info),
        "n": optional({"type": "integer", "minimum": 1, "maximum": MAX_CHOICES}, "Answers to each prompt."),
        "max_tokens": optional(LIMIT, "Most tokens of an answer; 0 only with prompt_logprobs."),
        "prompt_logprobs": optional(
            {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
            "Tell the log-probabilities of the prompt's tokens, and of so many of the likeliest. Not in a stream.",
        ),
    }


def everywhere(info: ModelInfo) -> Schema:
    """The fields of every kind of request."""
    return {
        **without_effect(),
        "model": optional({"type": "string", "enum": [info.model_id, None]}, "The model served here."),
        **_sampling(),
        **(_penalties() if PENALTIES in info.capabilities else _without_penalties()),
        "logit_bias": _logit_bias(info),
        **_ends(info),
        **_delivery(),
        "opensled": _service(),
    }


def without_effect() -> Schema:
    """The fields that are taken and left out: with any value, or at values that ask for nothing."""
    return {
        **{name: one_of(*off_values(name), None) for name in (*OFF, *OFF_OR_UNKNOWN)},
        **{
            name: {"description": "Without effect; named in OpenSLED-Ignored."}
            for name in sorted(ANNOTATIONS)
        },
    }


def _sampling() -> Schema:
    return {
        "temperature": optional(
            {"anyOf": [one_of(0), {"type": "number", "minimum": MIN_TEMPERATURE, "maximum": 100}]},
            "0 takes the likeliest token. 1 if left out.",
        ),
        "top_k": optional(
            {"type": "integer", "maximum": 2**31 - 1}, "Keep the K likeliest tokens; 0 or less = all."
        ),
        "top_p": optional(
            {"type": "number", "minimum": 0, "maximum": 1},
            "Keep the likeliest tokens that together reach P; 0 = the likeliest token alone.",
        ),
        "seed": optional(
            {"type": "integer"},
            "Same seed, same answer; it counts modulo 2^64. The first choice is drawn with it, choice i with a hash of "
            "seed and i.",
        ),
    }


def _penalties() -> Schema:
    additive = {"type": "number", "minimum": -MAX_PENALTY, "maximum": MAX_PENALTY}
    factor = {"type": "number", "minimum": MIN_REPETITION, "maximum": MAX_PENALTY}
    return {
        "min_p": optional(
            {"type": "number", "minimum": 0, "maximum": 1},
            "Keep tokens at least P times as probable as the likeliest; 0 = all.",
        ),
        "presence_penalty": optional(additive, "Subtracted from the logit of tokens that the answer has."),
        "frequency_penalty": optional(additive, "Subtracted for each time that the answer has the token."),
        "repetition_penalty": optional(
            factor,
            "Divides a positive logit of tokens that the answer has, multiplies a negative one. The prompt does not "
            "count.",
        ),
    }


def _without_penalties() -> Schema:
    zero = ("min_p", "presence_penalty", "frequency_penalty")
    return {**{name: one_of(0, None) for name in zero}, "repetition_penalty": one_of(1, None)}


def _logit_bias(info: ModelInfo) -> Schema:
    biases = {
        "type": "object",
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
        "maxProperties": MAX_BIASES,
    }
    about = f"Token ids below {info.vocab_size}, as strings: what is added to the token's logit."
    return optional(biases, about)


def _ends(info: ModelInfo) -> Schema:
    stop = {"anyOf": [TEXT, items(TEXT, 0, MAX_STOPS)]}
    return {
        "stop": optional(stop, "Strings that end an answer; they are not shown. An empty one ends nothing."),
        "stop_token_ids": optional(items(_token(info), 0, MAX_STOP_IDS), "Tokens that end an answer."),
        "ignore_eos": optional(FLAG, "Go on behind the model's own end. Not with a grammar."),
    }


def _delivery() -> Schema:
    return {
        "stream": optional(FLAG, "Send the answer as server-sent events."),
        "stream_options": optional(
            closed(
                {
                    "include_usage": optional(FLAG, "End with an event that has the usage."),
                    **without_effect(),
                }
            ),
            "Without effect unless stream is true.",
        ),
    }


def _service() -> Schema:
    rate = {"type": "number", "minimum": 0, "maximum": MAX_PACE}
    about = "tokens/s the answer needs; the server promises them or refuses the request. 0 = no promise."
    fields = {
        "pace": optional(rate, about),
        "background": optional(FLAG, "No reader waits for the answer: under load other answers go first."),
        "drafts": optional(FLAG, "false: the device drafts nothing for it. The text is the same."),
    }
    return optional(closed(fields), "How the answer is served; what is left out is as configured here.")


def _chat_only() -> Schema:
    return {
        "max_completion_tokens": optional(LIMIT, "Newer name of max_tokens; of both the smaller one holds."),
        "logprobs": optional(FLAG, "Tell the log-probabilities of the answer's tokens."),
        "top_logprobs": optional(
            {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
            "With logprobs: true only: of so many of the likeliest tokens, too.",
        ),
    }


def _completion_only() -> Schema:
    return {
        "max_tokens": optional(
            LIMIT,
            f"Most tokens of an answer; {COMPLETION_TOKENS} if left out, 0 only with echo or prompt_logprobs.",
        ),
        "logprobs": optional(
            {"anyOf": [one_of(False), {"type": "integer", "minimum": 0, "maximum": MAX_COMPLETION_LOGPROBS}]},
            "Tell the log-probabilities of the answer's tokens, with echo also of the prompt's, and of so many of the "
            "likeliest.",
        ),
        "echo": optional(FLAG, "Show the prompt before the answer."),
        "best_of": optional(
            {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES}, "1, equal to n, or left out."
        ),
    }


def _prompt(info: ModelInfo) -> Schema:
    ids = items(_token(info), 1)
    return {
        "description": "Text or token ids, or a list of either; choices come in the order of the prompts.",
        "anyOf": [TEXT, ids, items(TEXT, 1, MAX_PROMPTS), items(ids, 1, MAX_PROMPTS)],
    }


PICTURE_URL: Schema = {
    **TEXT,
    "description": "A data URL: data:image/png;base64,...",
}
DETAIL = one_of(*DETAILS, None)


def picture(kind: str) -> Schema:
    """A part of the type `kind` that shows a picture."""
    inner = closed({"url": PICTURE_URL, "detail": DETAIL}, "url")
    fields = {"type": one_of(kind), "image_url": {"anyOf": [PICTURE_URL, inner]}, "detail": DETAIL}
    return opened({**fields, "file_id": one_of("", None)}, "type", "image_url")


def content(*others: Schema, thoughts: bool = False) -> Schema:
    """A text, or a list of texts and `others`, and of an earlier answer's thoughts, which are left out."""
    text = opened(
        {"type": one_of(*(kind for kind in TEXTS if kind != "refusal")), "text": TEXT}, "type", "text"
    )
    refusal = opened({"type": one_of("refusal"), "refusal": TEXT}, "type", "refusal")
    left_out = [opened({"type": one_of(*THOUGHTS)}, "type")] if thoughts else []
    return {"anyOf": [TEXT, items({"anyOf": [text, refusal, *left_out, *others]})]}


def _messages(info: ModelInfo) -> list[Schema]:
    """Fields of earlier turns that are not listed are left out."""
    name = {"name": optional(TEXT, "Who speaks; for the chat template.")}
    empty = {held: one_of("", [], {}, None) for held in HELD}
    called = opened({"name": TEXT, "arguments": arguments()}, "name")
    kind = {"type": one_of("function", None)}
    call = opened({"id": TEXT, **kind, "function": called}, "id", "function")
    assistant = {
        "role": one_of("assistant"),
        **name,
        "content": optional(content(thoughts=True), "None is an empty text."),
        "refusal": optional(TEXT, "The text of an answer that has no other."),
        "function_call": empty["function_call"],
        "tool_calls": optional(items(call), ""),
    }
    shown = content(*([picture("image_url")] if info.images else []))
    return [
        opened({"role": one_of("system", "developer"), "content": content(), **name, **empty}, "role", "content"),
        opened({"role": one_of("user"), "content": shown, **name, **empty}, "role", "content"),
        opened(assistant, "role"),
        opened(
            {"role": one_of("tool"), "content": optional(content(), ""), "tool_call_id": TEXT, **name, **empty},
            "role", "tool_call_id",
        ),
    ]  # fmt: skip


def arguments() -> Schema:
    """Of an earlier call."""
    return {
        "anyOf": [TEXT, {"type": "object"}, {"type": "null"}],
        "description": "A JSON object, as one or as a text; none is an empty one.",
    }
