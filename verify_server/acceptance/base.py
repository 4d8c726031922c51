"""What an acceptance rule is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from opensled.messages import SamplingParams
from verify_server.engine.base import Scores


@dataclass(frozen=True)
class Question:
    """A draft at its place in a sequence: k draft ids to follow the `position` committed tokens."""

    draft: tuple[int, ...]
    position: int
    params: SamplingParams
    key: bytes  # noise key


class AcceptancePolicy(Protocol):
    """Decides one draft. Runs in the engine's thread, right after the forward pass."""

    def accept(self, question: Question, scores: Scores, rows: Sequence[int]) -> tuple[int, int]:
        """(num_accepted, next_token): how many draft ids stand, and the recovered or bonus token after them.

        `rows` has k + 1 entries; row i holds the target's scores for position `question.position + i`.
        """
