"""What an acceptance rule is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from opensled.messages import DraftToken, SamplingParams
from verify_server.engine.base import Masks, Scores
from verify_server.trees import depth


class DraftCheck(NamedTuple):
    """A draft at its place in a sequence: k draft tokens to follow the `position` committed ones."""

    draft: tuple[DraftToken, ...]
    position: int
    params: SamplingParams
    key: bytes  # noise key
    top_logprobs: int | None = None  # log-probabilities wanted of each committed token, and of so many others
    masks: Masks = None  # k + 1 of them, when the answer is guided
    parents: tuple[int, ...] = ()  # of each draft token, if they are a tree (`DraftBlock`); () = a chain

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple([token.id for token in self.draft])

    @property
    def depth(self) -> int:
        """How many draft tokens can be accepted at most."""
        return depth(self.draft, self.parents)


class AcceptancePolicy(Protocol):
    """Decides one draft. Runs in the engine's thread, right after the forward pass."""

    trusts_device: bool  # the text depends on what the device says of its probabilities

    def accept(self, question: DraftCheck, scores: Scores, rows: Sequence[int]) -> tuple[int, int]:
        """(num_accepted, next_token): how many draft ids stand, and the recovered or bonus token after them.

        `rows` has k + 1 entries; row i holds the target's scores for position `question.position + i`.
        """


@runtime_checkable
class TreePolicy(AcceptancePolicy, Protocol):
    """A rule that can decide draft trees as well; drafts of others are chains."""

    def accept_tree(
        self, question: DraftCheck, scores: Scores, rows: Sequence[int]
    ) -> tuple[tuple[int, ...], int]:
        """(path, next_token): indices of the draft tokens that stand, each the parent of the next one.

        Row 0 holds the target's scores after the text, row i + 1 those after draft token i and the path to it.
        """
