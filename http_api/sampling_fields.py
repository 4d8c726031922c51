"""How tokens are sampled and where an answer ends, from JSON: fields of both kinds of requests."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from http_api.chat_messages import token_ids
from http_api.fields import Fields, is_number, require_object, require_text
from opensled.core.errors import InvalidRequest, RequestError
from opensled.core.messages import MAX_BIAS, ModelInfo, SamplingParams
from opensled.core.penalties import require_served

MAX_STOPS = 64
NO_LIMIT = -1  # as llama-server and LM Studio write it
MAX_STOP_IDS = 256


def read_params(fields: Fields, info: ModelInfo, max_tokens: int) -> SamplingParams:
    """The sampling parameters; temperature 1 if absent, as at OpenAI.

    Raises InvalidRequest, and Unsupported for what the server that `info` describes does not serve.
    """
    given = fields.read("sampling")
    theirs = given.pop("repeat_penalty", 1.0)  # llama.cpp's name of repetition_penalty
    try:
        SamplingParams(repetition_penalty=theirs)  # refused also beside the other name, which goes first
        return _params(fields, info, max_tokens, {"repetition_penalty": theirs, **given})
    except RequestError as error:
        if theirs != 1 and error.field == "repetition_penalty":
            raise type(error)(f"repeat_penalty: {error}", "repeat_penalty") from error
        raise


def _params(fields: Fields, info: ModelInfo, max_tokens: int, given: dict[str, Any]) -> SamplingParams:
    top_p = given.pop("top_p", 1.0)
    given["top_k"] = max(0, given.get("top_k", 0))  # all are kept with -1, too
    if "seed" in given:  # any integer, as signed 64 bits
        given["seed"] = (given["seed"] + 2**63) % 2**64 - 2**63
    params = SamplingParams(
        **given,
        top_p=top_p or 1.0,
        max_tokens=max_tokens,
        stop_ids=_stop_ids(fields.take("stop_token_ids"), info),
        logit_bias=_logit_bias(fields.take("logit_bias"), info),
    )
    if fields.integer("repeat_last_n") == 0:  # of no token; any other number means the whole answer here
        params = replace(params, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0)
    require_served(params, info)
    return params if top_p else replace(params, top_k=1)  # of a share of 0 the likeliest token is left


def seed_choice(params: SamplingParams, choice: int) -> SamplingParams:
    """The parameters of one choice: the first one has the seed itself, the others a hash of it and of their number."""
    if params.seed is None or not choice:
        return params
    data = params.seed.to_bytes(8, "little", signed=True) + choice.to_bytes(4, "little")
    digest = hashlib.blake2b(data, digest_size=8, person=b"opensled-choice").digest()
    return replace(params, seed=int.from_bytes(digest, "little", signed=True))


def token_limit(
    fields: Fields, info: ModelInfo, *names: str, may_be_none: bool | None = None
) -> tuple[int | None, str]:
    """The token limit under its old or new name, and that name; of two limits the smaller one. -1 means no limit.

    `may_be_none`: 0 asks for the prompt's part alone, which the request wants to see; None = it never can.
    """
    found: dict[int, str] = {}
    for name in names:
        value = fields.integer(name)
        if value is None:
            continue
        value = info.limits.context_length if value == NO_LIMIT else value
        if not (0 if may_be_none else 1) <= value < 2**31:
            shown = "; 0 only where the prompt is shown, by prompt_logprobs or by echo at /v1/completions"
            raise InvalidRequest(
                f"{name} is out of range: it must be from 1 to {2**31 - 1}, or {NO_LIMIT} for no limit"
                + (shown if value == 0 and may_be_none is not None else ""),
                name,
            )
        found[value] = name
    return (min(found), found[min(found)]) if found else (None, names[0])


def read_stop(value: object, name: str = "stop") -> tuple[str, ...]:
    """The field `name`: one string or a few; an empty one ends nothing. Raises InvalidRequest."""
    if value is None:
        return ()
    stops = value if isinstance(value, list) else [value]
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"{name} may hold at most {MAX_STOPS} strings", name)
    for index, stop in enumerate(stops):
        if not isinstance(stop, str):
            item = f"{name}[{index}]" if stops is value else name
            raise InvalidRequest(f"{item} must be a string", name)
    texts = [require_text(stop, name) for stop in stops]
    return tuple(text for text in texts if text)


def _stop_ids(value: object, info: ModelInfo) -> tuple[int, ...]:
    ids = () if value is None else token_ids(value, "stop_token_ids", info)
    if len(ids) > MAX_STOP_IDS:
        raise InvalidRequest(f"stop_token_ids may hold at most {MAX_STOP_IDS} ids", "stop_token_ids")
    return ids


def _logit_bias(value: object, info: ModelInfo) -> tuple[tuple[int, float], ...]:
    """JSON keys are strings, so token ids are written as decimal numbers."""
    biases: Mapping[str, object] = {} if value is None else require_object(value, "logit_bias")
    return tuple((_bias_id(key, info), _bias(bias)) for key, bias in biases.items())


def _bias_id(key: str, info: ModelInfo) -> int:
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key):
        raise InvalidRequest('logit_bias must have token ids as keys, such as "123"', "logit_bias")
    if int(key) >= info.vocab_size:
        raise InvalidRequest(
            f"logit_bias has an id outside the vocabulary of {info.vocab_size}", "logit_bias"
        )
    return int(key)


def _bias(value: object) -> float:
    if not is_number(value) or not -MAX_BIAS <= float(value) <= MAX_BIAS:
        raise InvalidRequest(f"logit_bias must have numbers from -{MAX_BIAS} to {MAX_BIAS}", "logit_bias")
    return float(value)
