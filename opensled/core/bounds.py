"""Checks of a message before it is decoded: mainly how many parts it may have.

A part takes two bytes on the wire and becomes an object of a hundred bytes: four megabytes of empty chat turns would
block the event loop, and all sessions, for seconds. These limits are far above real use; the server checks its own
limits (draft length, prompt size) later. They hold for what was sent, not for what remains of it: a million equal stop
ids are a million.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from opensled.core.errors import InvalidRequest
from opensled.core.images import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_PROMPT_IMAGE_BYTES
from opensled.core.messages import MAX_BIASES, MAX_TOP_LOGPROBS

MAX_POSITIONS = 1 << 20  # token ids in one list
MAX_TURNS = 1 << 13  # turns of a chat, and calls of tools in all of them
MAX_TOOLS = 1 << 10
MAX_BLOCK = 1 << 10  # draft tokens
MAX_NAMED = 1 << 16  # ids in all distributions of one draft
MAX_STOP_IDS = 256  # as in http_api/sampling_fields.py: each Open carries them all
MAX_NAME = 1 << 10  # characters of a rule, a role, a tool's name
# Of a text, for each position of a context: hardly any token is longer. A longer prompt is not tokenized.
MAX_CHARACTERS = 64
MAX_MODEL = 1 << 12  # characters of a target's name, which may be a path
MAX_TOKEN = 1 << 12  # bytes of a resume token: it holds the names of a tenant and a replica
MAX_DESCRIPTION = 1 << 17  # characters of a tool's description; coding agents send 19,000 for one
ENDS = frozenset({"", "eos", "stop", "length"})  # finish reasons of a verdict, "" = goes on


def too_long(tokens: int, context: int) -> InvalidRequest:
    """The refusal of a prompt that leaves no room for an answer in a context of so many positions.

    Its first words are Anthropic's: coding agents that find them shorten the chat by themselves.
    """
    return InvalidRequest(
        f"prompt is too long: {tokens} tokens > {context} maximum, this server's context; send fewer or shorter turns "
        "and tools, or ask a server whose model has a larger context",
        "prompt",
    )


def check_open(message: Any, positions: int = MAX_POSITIONS) -> None:
    """Raises InvalidRequest, naming the field, for a protobuf `Open` with too many or too large parts.

    `positions`: token ids of prompt and answer together that there is room for.
    """
    turns = message.chat.messages
    ids = len(message.ids.ids) + len(message.committed)
    if ids > positions:
        raise too_long(ids, positions)
    _at_most(MAX_STOP_IDS, len(message.params.stop_ids), "stop_ids", "stop ids")
    _at_most(MAX_BIASES, len(message.params.logit_bias), "logit_bias", "ids")
    _at_most(MAX_TURNS, len(turns), "messages", "messages")
    _at_most(MAX_TURNS, sum(len(turn.tool_calls) for turn in turns), "messages", "tool calls")
    _at_most(MAX_IMAGES, len(message.images), "images", "images")
    _check_places(turns, len(message.images))
    sizes = [len(image.data) for image in message.images]
    if max(sizes, default=0) > MAX_IMAGE_BYTES or sum(sizes) > MAX_PROMPT_IMAGE_BYTES:
        raise InvalidRequest(
            f"images of {sum(sizes)} bytes: at most {MAX_IMAGE_BYTES} each and {MAX_PROMPT_IMAGE_BYTES} in all",
            "images",
        )
    _no_longer(MAX_NAME, message.rule, "rule")
    _no_longer(MAX_TOKEN, message.resume_token, "resume_token")
    _no_longer(MAX_MODEL, message.model_id, "model_id")
    _no_longer(MAX_NAME, message.fingerprint, "fingerprint")
    _no_longer(MAX_NAME, message.device, "device")
    if message.HasField("guide"):
        _check_tools(message.guide)


def _check_places(turns: Sequence[Any], images: int) -> None:
    """Each picture of a chat has its place in one turn."""
    places = [place for turn in turns for place in turn.images]
    _at_most(MAX_IMAGES, len(places), "images", "places of images")
    if turns and len(places) != images:
        raise InvalidRequest(f"{images} images for {len(places)} places in the messages", "images")
    for turn in turns:
        if not all(first <= second for first, second in pairwise((0, *turn.images, len(turn.content)))):
            raise InvalidRequest(
                "places of images must be ascending, and lie within the content of their turn", "images"
            )


def _check_tools(guide: Any) -> None:
    _at_most(MAX_TOOLS, len(guide.tools), "tools", "tools")
    _no_longer(MAX_NAME, guide.tool_choice, "tool_choice")
    _no_longer(MAX_NAME, guide.function, "tool_choice")
    for tool in guide.tools:
        _no_longer(MAX_NAME, tool.name, "tools")
        _no_longer(MAX_DESCRIPTION, tool.description, "tools", f"the description of the tool {tool.name}")


def check_draft(tokens: int, parents: Sequence[int], confidences: bytes, sources: Sequence[Any]) -> None:
    """Raises InvalidRequest, naming the field, for fields of a protobuf `Draft` of `tokens` tokens with too many parts
    or invalid parents.

    `sources`: the distributions. Not the message, for each access to a list in it costs as much as a check.
    """
    _at_most(MAX_BLOCK, tokens, "tokens", "draft tokens")
    _check_parents(parents, tokens)
    if confidences and len(confidences) != tokens:
        raise InvalidRequest(f"{len(confidences)} confidences for {tokens} draft tokens", "confidences")
    if not sources:
        return
    if len(sources) != tokens:
        raise InvalidRequest(f"{len(sources)} distributions for {tokens} draft tokens", "draft_probs")
    named = sum(max(len(source.ids), len(source.probs)) for source in sources)
    _at_most(MAX_NAMED, named, "draft_probs", "ids in all distributions")


def check_verdict(message: Any) -> None:
    """Raises InvalidRequest, naming the field, for a protobuf `Verdict` with an end, log-probabilities, loose, vetted
    or unverified tokens that cannot be."""
    if message.finish_reason not in ENDS:
        raise InvalidRequest(f"{message.finish_reason[:80]!r} is not a finish reason", "finish_reason")
    loose = [-1, *message.loose]
    if not all(last < index < len(message.tokens) for last, index in pairwise(loose)):
        raise InvalidRequest("loose must hold ascending indices into tokens", "loose")
    if message.vetted > len(message.tokens) or (message.vetted and message.finish_reason):
        raise InvalidRequest("vetted tokens must be the last tokens, and cannot end a sequence", "vetted")
    if message.unverified + message.vetted > len(message.tokens):
        raise InvalidRequest("unverified tokens must come directly before the vetted tokens", "unverified")
    if len(message.logprobs) > len(message.tokens):
        raise InvalidRequest("more log-probabilities than tokens", "logprobs")
    _check_logprobs(message.logprobs)


def _check_logprobs(entries: Sequence[Any]) -> None:
    for entry in entries:
        if not 1 <= len(entry.ids) <= 1 + MAX_TOP_LOGPROBS or len(entry.ids) != len(entry.logprobs):
            raise InvalidRequest(f"log-probabilities name 1 to {1 + MAX_TOP_LOGPROBS} ids", "logprobs")
        if any(map(math.isnan, entry.logprobs)):
            raise InvalidRequest("a log-probability is not a number", "logprobs")


def check_prefill(message: Any) -> None:
    """Raises InvalidRequest for a protobuf `Prefill` with more positions found than computed, or than there are, or
    with tokens beyond them."""
    if not message.cached <= message.computed <= message.length:
        raise InvalidRequest("prefill needs cached <= computed <= length", "prefill")
    if message.tokens and message.first + len(message.tokens) > message.length:
        raise InvalidRequest("prefill has tokens beyond the end of the text", "prefill")
    _check_logprobs(message.tokens)


def _check_parents(parents: Sequence[int], count: int) -> None:
    if not parents:
        return
    if len(parents) != count:
        raise InvalidRequest(f"{len(parents)} parents for {count} draft tokens", "parents")
    if not all(-1 <= parent < index for index, parent in enumerate(parents)):
        raise InvalidRequest("a parent is -1 or the index of an earlier draft token", "parents")


def _at_most(limit: int, count: int, field: str, what: str) -> None:
    if count > limit:
        raise InvalidRequest(f"{count} {what}: a message may have at most {limit}", field)


def _no_longer(limit: int, value: str | bytes, field: str, what: str = "") -> None:
    """`what`: the words for `value`; "" = the field itself."""
    if len(value) > limit:
        raise InvalidRequest(
            f"{what or field} has {len(value)} characters; it may have at most {limit}", field
        )


def require_unicode(text: str, what: str, field: str) -> str:
    """`text` if it has a UTF-8 form; raises InvalidRequest for `field`, which calls it `what`."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{what} is not valid Unicode text (a lone surrogate)", field) from error
    return text
