"""The JSON schemas of requests: the fields and ranges that requests.py and its helpers read."""

from http_api.chat_messages import BESIDE, CALLS, MAX_PROMPTS
from http_api.content_parts import TEXTS
from http_api.effects import ANNOTATIONS, EMPTY, OFF, OFF_OR_UNKNOWN, off_values
from http_api.guide_schemas import guide_fields
from http_api.model_names import names_of
from http_api.replies import (
    COUNT,
    TEXT,
    TOLD,
    Schema,
    closed_object,
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
from http_api.requests import COMPLETION_TOKENS, MAX_COMPLETION_LOGPROBS
from http_api.sampling_fields import MAX_CHOICES, MAX_STOP_IDS, MAX_STOPS
from http_api.thinking_fields import EFFORT, KWARGS, SET_ALREADY, TYPES
from opensled.core.bounds import MAX_CHARACTERS
from opensled.core.messages import (
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
from opensled.core.template_variables import RESERVED
from opensled.text.thinking import KEYS

LIMIT: Schema = {"anyOf": [*COUNT["anyOf"], one_of(0)]}  # where a prompt can be shown without an answer


def components(info: ModelInfo) -> Schema:
    """Those of requests, for a server that says `info`."""
    return {
        "ChatRequest": request_object(
            {
                "messages": items(ref("Message"), 1),
                **_common(info),
                **_chat_only(),
                **thinking(),
                **guide_fields(info),
            },
            "messages",
        ),
        "CompletionRequest": request_object(
            {"prompt": _prompt(info), **_common(info), **_completion_only()}, "prompt"
        ),
        "Message": {"anyOf": _messages(info)},
        **_tokens(info),
    }


def _tokens(info: ModelInfo) -> Schema:
    """Requests and answers of /tokenize and /detokenize."""
    asked = {"model": _model(info), **without_effect()}
    spelled = switch("Whether the tokens are spelled out, too.")
    special = switch("Whether the model's special tokens, such as BOS, are added.")
    text = {"type": "string", "maxLength": MAX_CHARACTERS * info.limits.context_length}
    return {
        "TokenizeRequest": closed_object(
            {**asked, "prompt": text, "add_special_tokens": special, "return_token_strs": spelled}, "prompt"
        ),
        "Tokens": open_object(
            {
                "count": {"type": "integer"},
                "max_model_len": {"type": "integer"},
                "tokens": items(_token(info)),
                "token_strs": or_null(items({"type": "string"})),
            },
            "count",
            "tokens",
        ),
        "DetokenizeRequest": closed_object({**asked, "tokens": items(_token(info))}, "tokens"),
        "TokenText": open_object({"prompt": {"type": "string"}, "content": {"type": "string"}}, "prompt"),
    }


def _model(info: ModelInfo) -> Schema:
    return optional(one_of(*names_of(info)), "The model served here, by any name.")


def _token(info: ModelInfo) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": info.vocab_size - 1}


def _common(info: ModelInfo) -> Schema:
    return {
        **everywhere(info),
        "n": number({"type": "integer", "minimum": 1, "maximum": MAX_CHOICES}, "Answers to each prompt."),
        "max_tokens": number(LIMIT, "Most tokens of an answer; 0 only with prompt_logprobs."),
        "prompt_logprobs": number(
            {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
            "Tell the log-probabilities of the prompt's tokens, and of so many of the likeliest. Not in a stream.",
        ),
    }


def everywhere(info: ModelInfo) -> Schema:
    """The fields of every kind of request."""
    return {
        **without_effect(),
        "model": _model(info),
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
        **{name: one_of(*off_values(name)) for name in (*OFF, *OFF_OR_UNKNOWN)},
        **{
            name: {"description": "Without effect; named in OpenSLED-Ignored."}
            for name in sorted(ANNOTATIONS)
        },
    }


def _sampling() -> Schema:
    return {
        "temperature": number(
            {"anyOf": [one_of(0), {"type": "number", "minimum": MIN_TEMPERATURE, "maximum": 100}]},
            "0 takes the likeliest token. 1 if left out.",
        ),
        "top_k": number(
            {"type": "integer", "maximum": 2**31 - 1}, "Keep the K likeliest tokens; 0 or less = all."
        ),
        "top_p": number(
            {"type": "number", "minimum": 0, "maximum": 1},
            "Keep the likeliest tokens that together reach P; 0 = the likeliest token alone.",
        ),
        "seed": number(
            {"type": "integer"},
            "Same seed, same answer; it counts modulo 2^64. The first choice is drawn with it, choice i with a hash of "
            "seed and i.",
        ),
    }


def _penalties() -> Schema:
    additive = {"type": "number", "minimum": -MAX_PENALTY, "maximum": MAX_PENALTY}
    factor = {"type": "number", "minimum": MIN_REPETITION, "maximum": MAX_PENALTY}
    return {
        "repeat_penalty": number(factor, "llama.cpp's name of repetition_penalty, which is taken of both."),
        "min_p": number(
            {"type": "number", "minimum": 0, "maximum": 1},
            "Keep tokens at least P times as probable as the likeliest; 0 = all.",
        ),
        "presence_penalty": number(additive, "Subtracted from the logit of tokens that the answer has."),
        "frequency_penalty": number(additive, "Subtracted for each time that the answer has the token."),
        "repetition_penalty": number(
            factor,
            "Divides a positive logit of tokens that the answer has, multiplies a negative one. The prompt does not "
            "count.",
        ),
    }


def _without_penalties() -> Schema:
    zero = ("min_p", "presence_penalty", "frequency_penalty")
    return {
        **{name: one_of(0, *EMPTY) for name in zero},
        **dict.fromkeys(("repetition_penalty", "repeat_penalty"), one_of(1, *EMPTY)),
    }


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
        "ignore_eos": switch("Go on behind the model's own end. Not with a grammar."),
    }


def _delivery() -> Schema:
    return {
        "stream": switch("Send the answer as server-sent events."),
        "stream_options": optional(
            request_object(
                {
                    "include_usage": switch("End with an event that has the usage."),
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
        "pace": number(rate, about),
        "background": switch("No reader waits for the answer: under load other answers go first."),
        "drafts": switch("false: the device drafts nothing for it. The text is the same."),
    }
    return optional(
        request_object(fields), "How the answer is served; what is left out is as configured here."
    )


def _chat_only() -> Schema:
    return {
        "max_completion_tokens": number(LIMIT, "Newer name of max_tokens; of both the smaller one holds."),
        "logprobs": switch("Tell the log-probabilities of the answer's tokens."),
        "top_logprobs": number(
            {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
            "With logprobs: true only: of so many of the likeliest tokens, too.",
        ),
    }


def thinking() -> Schema:
    """Fields of chats and responses, which agree on whether the model is to think."""
    kwargs = {name: one_of(*SET_ALREADY.get(name, ()), None) for name in RESERVED} | _switches()
    return {
        **_switches(),
        "include_reasoning": switch("false: the answer comes without the thoughts."),
        "reasoning": _reasoning(),
        KWARGS: optional(
            open_object(kwargs), "Variables of the chat template; those that it does not read are left out."
        ),
    }


def _switches() -> Schema:
    kind = open_object({"type": one_of(*TYPES, *EMPTY, False)})
    return {
        "enable_thinking": switch("Whether the model thinks before it answers."),
        "thinking": optional({"anyOf": [one_of(True, 0), kind]}, "The same, as DeepSeek and GLM have it."),
        EFFORT: optional(TEXT, "How much it thinks; none = not at all."),
    }


def _reasoning() -> Schema:
    fields = {
        "enabled": switch("Whether the model thinks before it answers."),
        "effort": optional(TEXT, "How much it thinks; none = not at all."),
        "exclude": switch("true: the answer comes without the thoughts."),
    }
    return optional(open_object(fields), "Others of its fields are left out.")


def _completion_only() -> Schema:
    return {
        "max_tokens": number(
            LIMIT,
            f"Most tokens of an answer; {COMPLETION_TOKENS} if left out, 0 only with echo or prompt_logprobs.",
        ),
        "logprobs": number(
            {"anyOf": [one_of(False), {"type": "integer", "minimum": 0, "maximum": MAX_COMPLETION_LOGPROBS}]},
            "Tell the log-probabilities of the answer's tokens, with echo also of the prompt's, and of so many of the "
            "likeliest.",
        ),
        "echo": switch("Show the prompt before the answer."),
        "best_of": number(
            {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES}, "1, equal to n, or left out."
        ),
    }


def _prompt(info: ModelInfo) -> Schema:
    ids = items(_token(info), 1)
    return {
        "description": "Text or token ids, or a list of either; choices come in the order of the prompts.",
        "anyOf": [TEXT, ids, items(TEXT, 1, MAX_PROMPTS), items(ids, 1, MAX_PROMPTS)],
    }


PICTURE_URL: Schema = {**TEXT, "description": "A data URL, data:image/png;base64,..., or base64."}


def picture(kind: str) -> Schema:
    """A part of the type `kind` that shows a picture."""
    inner = open_object({"url": PICTURE_URL}, "url")
    fields = {"type": one_of(kind), "image_url": {"anyOf": [PICTURE_URL, inner]}}
    return open_object(fields, "type", "image_url")


def content(*others: Schema, strict: tuple[str, ...] = ()) -> Schema:
    """A text, or a list of parts."""
    return optional({"anyOf": [TEXT, items(part(*others, strict=strict))]}, "None is an empty text.")


def part(*others: Schema, strict: tuple[str, ...] = ()) -> Schema:
    """A text, one of `others`, the types `strict` among them, or what else a history has."""
    said = optional(TEXT, "")
    kinds = one_of(*(kind for kind in TEXTS if kind != "refusal"), *EMPTY, False)
    text = open_object({"type": kinds, "text": said}, "text")
    refusal = open_object({"type": one_of("refusal"), "refusal": said}, "type", "refusal")
    about = "Read if it can be; else refused in the user's last turn, and a line of text in any other."
    kind = {**TEXT, "minLength": 1, "not": one_of(*TEXTS, *strict), "description": about}
    typed = open_object({"type": kind}, "type")
    untyped = {**open_object({"type": one_of(*EMPTY, False)}), "not": {"required": ["text"]}}
    return {"anyOf": [TEXT, text, refusal, *others, typed, untyped, one_of(*EMPTY, False)]}


def _messages(info: ModelInfo) -> list[Schema]:
    """Fields of earlier turns that are not listed are left out."""
    name = {"name": optional(TEXT, "Who speaks; for the chat template.")}
    named = {**name, "tool_name": optional(TEXT, "The same, as Ollama has it.")}
    beside = {
        field: {"description": "As a part of the content of that type, or several."} for field in BESIDE
    }
    called = open_object({"name": TEXT, "arguments": arguments()}, "name")
    custom = open_object({"name": TEXT, "input": optional(TEXT, "")}, "name")
    kind = {"type": one_of("function", *EMPTY, False)}
    identified = {"id": optional(TEXT, CALL_ID)}
    call = open_object({**identified, **kind, "function": called}, "function")
    other = open_object({**identified, "type": one_of("custom"), "custom": custom}, "type", "custom")
    elsewhere = open_object({"type": {**TEXT, "minLength": 1, "not": one_of(*CALLS)}}, "type")
    shown = content(*([picture("image_url")] if info.images else []))
    assistant = {
        "role": one_of("assistant"),
        **named,
        **beside,
        "content": shown,
        "refusal": optional(TEXT, "The text of an answer that has no other."),
        "function_call": optional(called, "A call, as older clients remember it."),
        **{key: {"description": "What it thought before: for templates that read it."} for key in KEYS},
        "tool_calls": optional(items({"anyOf": [call, other, elsewhere]}), ""),
    }
    said = {"content": shown, **named, **beside}
    answered = {"tool_call_id": optional(TEXT, RESULT_ID)}
    return [
        open_object({"role": one_of("system", "developer", "user"), **said}, "role", "content"),
        open_object(assistant, "role"),
        open_object({"role": one_of("tool", "function"), **said, **answered, "content": TOLD}, "role"),
    ]


CALL_ID = "Without one the call is numbered."
RESULT_ID = "The call it answers; without one the next call that waits, of the same name if it has one."


def arguments() -> Schema:
    """Of an earlier call."""
    return optional(
        {"anyOf": [TEXT, {"type": "object"}]}, "A JSON object, as one or as a text; none is an empty one."
    )
