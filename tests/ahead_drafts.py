"""A drafter that works ahead of the verdict."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from edge_client.drafters.base import ModelDrafter
from opensled.core.messages import DraftToken
from tests.fakes import POISON, next_token


class AheadDrafter(ModelDrafter):
    """Knows the fake target and errs at random: right with probability `acceptance`."""

    def __init__(self, acceptance: float, seed: int = 0) -> None:
        super().__init__(1000)
        self._acceptance, self._random = acceptance, random.Random(seed)

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        return np.empty(0)

    def truncate(self, length: int) -> int:
        return length

    def _draw(self, logits: np.ndarray, position: int) -> DraftToken:
        token = next_token(self.sequence)
        return DraftToken(
            token if self._random.random() < self._acceptance else 1 + token % (POISON - 1), 0.9
        )
