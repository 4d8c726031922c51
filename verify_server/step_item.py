"""What a step decides for one session: the acceptance rule's result, and what follows from it."""

from __future__ import annotations

from typing import NamedTuple

from opensled.messages import TokenLogprobs
from verify_server.acceptance.base import DraftCheck


class AcceptanceResult(NamedTuple):
    """What became of one session's draft in a step."""

    num_accepted: int
    next_token: int  # recovered or bonus
    logprobs: tuple[TokenLogprobs, ...] = ()  # of the accepted tokens and the next one, when asked for
    path: tuple[int, ...] = ()  # of a tree: the indices of the accepted tokens


def decided(check: DraftCheck, result: AcceptanceResult) -> tuple[int, ...]:
    """The accepted ids and the one after them."""
    if result.path:
        return (*[check.draft[index].id for index in result.path], result.next_token)
    return (*check.ids[: result.num_accepted], result.next_token)


def moves(check: DraftCheck, result: AcceptanceResult) -> list[tuple[int, int]]:
    """From where to where the KV of a tree's accepted tokens must go, so that they follow the text in order."""
    first = check.position
    return [(first + index, first + place) for place, index in enumerate(result.path) if index != place]
