"""Checks of a message before it is decoded: mainly how many parts it may have.

A part takes two bytes on the wire and becomes an object of a hundred bytes: four megabytes of empty chat turns would
block the event loop, and all sessions, for seconds. These limits are far above real use; the server checks its own
limits (draft length, context, prompt size) later.
"""

import math
from collections.abc import Sequence
from typing import Any

from opensled.errors import InvalidRequest
from opensled.messages import MAX_BIASES, MAX_TOP_LOGPROBS

MAX_POSITIONS = 1 << 20  # token ids in one list
MAX_TURNS = 1 << 13  # turns of a chat, and calls of tools in all of them
MAX_TOOLS = 1 << 10
MAX_BLOCK = 1 << 10  # draft tokens
MAX_NAMED = 1 << 16  # ids in all distributions of one draft


def check_open(message: Any) -> None:
    """Raises InvalidRequest, naming the field, for a protobuf `Open` with too many parts."""
    turns = message.chat.messages
    _at_most(MAX_POSITIONS, len(message.ids.ids), "prompt", "token ids")
    _at_most(MAX_POSITIONS, len(message.committed), "committed", "token ids")
    _at_most(MAX_POSITIONS, len(message.params.stop_ids), "stop_ids", "token ids")
    _at_most(MAX_BIASES, len(message.params.logit_bias), "logit_bias", "ids")
    _at_most(MAX_TURNS, len(turns), "messages", "messages")
    _at_most(MAX_TURNS, sum(len(turn.tool_calls) for turn in turns), "messages", "tool calls")
    _at_most(MAX_TOOLS, len(message.guide.tools), "tools", "tools")


def check_draft(message: Any) -> None:
    """Raises InvalidRequest, naming the field, for a protobuf `Draft` with too many parts or invalid parents."""
    _at_most(MAX_BLOCK, len(message.tokens), "tokens", "draft tokens")
    _check_parents(message.parents, len(message.tokens))
    if not message.draft_probs:
        return
    if len(message.draft_probs) != len(message.tokens):
        distributions, tokens = len(message.draft_probs), len(message.tokens)
        raise InvalidRequest(f"{distributions} distributions for {tokens} draft tokens", "draft_probs")
    named = sum(max(len(source.ids), len(source.probs)) for source in message.draft_probs)
    _at_most(MAX_NAMED, named, "draft_probs", "ids in all distributions")


def check_verdict(message: Any) -> None:
    """Raises InvalidRequest, naming the field, for a protobuf `Verdict` with invalid log-probabilities."""
    if len(message.logprobs) > len(message.tokens):
        raise InvalidRequest("more log-probabilities than tokens", "logprobs")
    for entry in message.logprobs:
        if not 1 <= len(entry.ids) <= 1 + MAX_TOP_LOGPROBS or len(entry.ids) != len(entry.logprobs):
            raise InvalidRequest(f"log-probabilities name 1 to {1 + MAX_TOP_LOGPROBS} ids", "logprobs")
        if any(map(math.isnan, entry.logprobs)):
            raise InvalidRequest("a log-probability is no number", "logprobs")


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


def require_unicode(text: str, what: str, field: str) -> str:
    """`text` if it has a UTF-8 form; raises InvalidRequest for `field`, which calls it `what`."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{what} is not valid Unicode text (a lone surrogate)", field) from error
    return text
