"""What an acceptance rule is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from opensled.messages import DraftToken, SamplingParams
from verify_server.engine.base import Masks, Scores


class Question(NamedTuple):
    """A draft at its place in a sequence: k draft tokens to follow the `position` committed ones."""

    draft: tuple[DraftToken, ...]
    position: int
    params: SamplingParams
    key: bytes  # noise key
    top_logprobs: int | None = None  # log-probabilities wanted of each committed token, and of so many others
    masks: Masks = None  # k + 1 of them, when the answer is guided

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple([token.id for token in self.draft])


class AcceptancePolicy(Protocol):
    """Decides one draft. Runs in the engine's thread, right after the forward pass."""

    trusts_device: bool  # the text depends on what the device says of its probabilities

    def accept(self, question: Question, scores: Scores, rows: Sequence[int]) -> tuple[int, int]:
        """(num_accepted, next_token): how many draft ids stand, and the recovered or bonus token after them.

        `rows` has k + 1 entries; row i holds the target's scores for position `question.position + i`.
        """
