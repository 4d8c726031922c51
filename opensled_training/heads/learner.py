"""What the trainer and the held-out walk know of a head in training; they do not know the kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from opensled_training.heads.batches import Batch
from opensled_training.heads.windows import Window
from verify_server.heads.collapse import Trie


class Shape(Protocol):
    """Of a head."""

    @property
    def kind(self) -> str: ...

    @property
    def taps(self) -> tuple[int, ...]:
        """Hidden states that it reads."""


class Learner(Protocol):
    @property
    def head(self) -> nn.Module:
        """What is trained, in float32."""

    @property
    def shape(self) -> Shape: ...

    @property
    def places(self) -> np.ndarray:
        """Of the target's ids in the draft vocabulary."""

    def batch(self, windows: Sequence[Window], rows: Sequence[np.ndarray]) -> Batch:
        """With drafts from `rows` of each window."""

    def loss(self, batch: Batch, name: str) -> Tensor:
        """`name`: see losses.LOSSES; a learner with a loss of its own takes that."""

    def drafts(self, batch: Batch) -> dict[str, list[Trie]]:
        """By way of drafting, `chain` and `tree`, a draft from each start; ids are of the draft vocabulary.

        A learner is judged by the last way."""
