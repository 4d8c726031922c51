"""A draft model that proposes what was recorded. It keeps its cache as a real one does; its passes only take time."""

from collections.abc import Callable, Sequence

import numpy as np

from edge_client.drafters.base import ModelDrafter
from lab.testbed.traces import ItemTrace
from opensled.core.messages import DraftToken

CONTEXT = 1 << 30  # positions; recorded drafts know no end of the cache
NO_LOGITS = np.empty(0)


class RecordedModel(ModelDrafter):
    """The drafts of `trace`, set before `begin`; `spend` hears of each pass, and over how many tokens it goes."""

    def __init__(self, spend: Callable[[int], None]) -> None:
        super().__init__(CONTEXT)
        self._spend = spend
        self.trace: ItemTrace
        self._next: DraftToken | None = None  # to be drawn

    def commit(self, tokens: Sequence[int]) -> None:
        """See `Drafter`. The recording says what follows a place, whatever was drafted there before."""
        super().commit(tokens)
        base = len(self.sequence) - len(self.drafted)
        for index in range(len(self.drafted)):
            token = self._recorded(index)
            if token is not None:
                self.drafted[index], self.sequence[base + index] = token, token.id

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        """See `ModelDrafter`; `_draw` knows the token without logits."""
        self._spend(len(tokens))
        return NO_LOGITS

    def truncate(self, length: int) -> int:
        return length

    def _draft_one(self) -> bool:
        """See `ModelDrafter`; False also where the recorded drafter had no more to say."""
        self._next = self._recorded(len(self.drafted))
        return self._next is not None and super()._draft_one()

    def _draw(self, logits: np.ndarray, position: int) -> DraftToken:
        assert self._next is not None, "nothing is drafted where nothing was recorded"
        return self._next

    def _recorded(self, index: int) -> DraftToken | None:
        """Number `index` of the tokens drafted after the truth."""
        found = self.trace.following(self.sequence, len(self.sequence) - len(self.drafted), index)
        return DraftToken(*found) if found else None
