"""A slow draft model with tables in front, `--drafter accelerated:llamacpp`: same drafts, fewer passes of the model.

FLy's multi-level acceleration (arXiv 2511.22972): what the tables say comes next goes through the draft model in one
batch with the tokens that are due anyway. Every draft token is the model's own draw from its own logits; a guess of the
tables only decides whether the logits behind it are there already. Reading a few tokens costs a model that is bound by
memory hardly more than reading one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import DrafterFactory, DrafterOptions, ModelDrafter
from edge_client.drafters.cacheback import CachebackDrafter, CachebackFactory
from edge_client.drafters.table_file import LONGEST_LEADER
from opensled.errors import UsageError
from opensled.messages import ModelInfo
from opensled.sampling import Sampler

MOST_GUESSES = 6  # tokens of the tables that one pass verifies, as FLy has it
LEAST_LIKELY = 0.3  # a guess that all of them up to here are right, below which no more are tried


@runtime_checkable
class BatchModel(Protocol):
    """A model drafter whose model gives the logits of several positions at once."""

    context_length: int

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        """See `ModelDrafter`."""

    def forward_rows(self, tokens: Sequence[int], start: int, wanted: int) -> Sequence[np.ndarray]:
        """Like `forward`; the logits [vocabulary] after each of the last `wanted` tokens."""

    def truncate(self, length: int) -> int:
        """See `ModelDrafter`."""

    def close(self) -> None:
        """See `ModelDrafter`."""


class AcceleratedFactory(DrafterFactory):
    """Makes drafters of the kind named, with tables in front of each."""

    uses_tables = True

    def __init__(
        self, name: str, model: str, threads: int = 0, options: DrafterOptions = DrafterOptions()
    ) -> None:
        self._models: DrafterFactory = DRAFTERS.get(name)(model, threads, options)
        self._tables = CachebackFactory(model, options=options)
        self.name = f"accelerated {self._models.name}"

    def check_vocabulary(self, target: ModelInfo) -> None:
        self._models.check_vocabulary(target)
        self._tables.check_vocabulary(target)

    def create(self) -> AcceleratedDrafter:
        model = self._models.create()
        if not isinstance(model, BatchModel):
            model.close()
            raise UsageError(
                f"{self._models.name} cannot verify several tokens at once; use accelerated:llamacpp"
            )
        return AcceleratedDrafter(model, self._tables.create())


class AcceleratedDrafter(ModelDrafter):
    """Drafts what `model` would draft alone. The cache discipline is here; of the model only its passes are used."""

    def __init__(self, model: BatchModel, tables: CachebackDrafter) -> None:
        super().__init__(model.context_length)
        self._model, self._tables = model, tables
        # Until the model shows that it cannot: then a wrong guess would cost all it read
        self._rolls_back = True

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        super().begin(prompt, sampler)
        self._tables.begin(prompt, sampler)

    def commit(self, tokens: Sequence[int]) -> None:
        super().commit(tokens)
        self._tables.commit(tokens)

    def _draft_one(self) -> bool:
        """Append the next draft token, and those after it whose logits are known because the tables guessed right."""
        length = len(self.sequence)
        if not 0 < length < self.context_length:
            return False
        self._keep(length - 1)
        guesses = self._guesses(length)
        rows = self._pass([*self.sequence[self.computed :], *guesses], 1 + len(guesses))
        for row, guess in zip(rows, [*guesses, None]):
            token = self.sampler.draw(row, len(self.sequence))
            self.drafted.append(token)
            self.sequence.append(token.id)
            if token.id != guess:
                break
        self._keep(len(self.sequence) - 1)  # the last token drawn was not read, or another one in its place
        self._rolls_back = self._rolls_back and self.computed > 0
        return True

    def _guesses(self, length: int) -> list[int]:
        """What the tables say comes next, as far as it is likely enough and the context has room."""
        guesses: list[int] = []
        if not self._rolls_back:
            return guesses
        likely = 1.0
        for token, confidence in self._tables.guess(self.sequence[-LONGEST_LEADER:]):
            likely *= confidence
            room = min(MOST_GUESSES, self.context_length - 1 - length)
            if likely < LEAST_LIKELY or len(guesses) >= room:
                break
            guesses.append(token)
        return guesses

    def _pass(self, tokens: Sequence[int], wanted: int) -> Sequence[np.ndarray]:
        try:
            rows = self._model.forward_rows(tokens, self.computed, wanted)
        except Exception:
            self.computed = self.truncate(0)  # nobody knows how much of it is in the cache
            raise
        self.computed += len(tokens)
        return rows

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        return self._model.forward(tokens, start)

    def truncate(self, length: int) -> int:
        return self._model.truncate(length)

    def close(self) -> None:
        super().close()
        self._model.close()
        self._tables.close()
