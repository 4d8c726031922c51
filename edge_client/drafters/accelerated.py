"""A slow draft model with tables in front, `--drafter accelerated:llamacpp`: same drafts, fewer passes of the model.

FLy's multi-level acceleration (arXiv 2511.22972): what the tables say comes next goes through the draft model in one
batch with the tokens that are due anyway. Every draft token is the model's own draw from its own logits; a guess of the
tables only decides whether the logits behind it are there already. Reading a few tokens costs a model that is bound by
memory hardly more than reading one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions, ModelDrafter
from edge_client.drafters.cacheback import CachebackDrafter, CachebackFactory
from edge_client.drafters.model_factory import ModelFactory
from opensled.core.errors import UsageError, VocabularyMismatch
from opensled.core.messages import ModelInfo
from opensled.core.sampling import Sampler
from opensled.drafting.table_file import LONGEST_LEADER
from opensled.text.tokenizer import TargetTokenizer

MAX_GUESSES = 6  # tokens of the tables that one pass verifies, as FLy has it
MIN_LIKELY = 0.3  # estimated chance that all guesses so far are right, below which no more are tried


class AcceleratedFactory(DrafterFactory):
    """Makes drafters of the kind named, with tables in front of each."""

    uses_tables = True

    def __init__(
        self, name: str, model: str, threads: int = 0, options: DrafterOptions = DrafterOptions()
    ) -> None:
        self._models = DRAFTERS.get(name)(model, threads, options)
        if not isinstance(self._models, ModelFactory):
            raise UsageError(f"{name} has no draft model to accelerate; use accelerated:llamacpp")
        self._tables = CachebackFactory(model, options=options)
        self.name = f"accelerated {self._models.name}"

    def fit(self, target: ModelInfo, tokenizer: TargetTokenizer | None = None) -> None:
        self._models.fit(target, tokenizer)
        if self._models.vocabulary.kind == "text":
            raise VocabularyMismatch(
                f"accelerated drafts need the target's ids, and {self._models.name} has another vocabulary; use "
                "--drafter llamacpp, which drafts by text then"
            )
        self.vocabulary = self._models.vocabulary
        self._tables.fit(target)

    def create(self) -> Drafter:
        model = self._models.create_model()
        if not hasattr(model, "forward_rows"):
            model.close()
            raise UsageError(
                f"{self._models.name} cannot verify several tokens at once; use accelerated:llamacpp"
            )
        return self._models.adapt(AcceleratedDrafter(model, self._tables.create()))


class AcceleratedDrafter(ModelDrafter):
    """Drafts what `model` would draft alone. The cache discipline is here; of the model only its passes are used."""

    def __init__(self, model: Any, tables: CachebackDrafter) -> None:
        """`model`: a `ModelDrafter` with `forward_rows(tokens, start, wanted)`, which is like `forward` and gives the
        logits [vocabulary] after each of the last `wanted` tokens."""
        super().__init__(model.context_length)
        self._model, self._tables, self.window = model, tables, model.window
        # False once the model has shown that it cannot: then a wrong guess would cost all that it has read
        self._rolls_back = True

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        super().begin(prompt, sampler)
        self._tables.begin(prompt, sampler)

    def commit(self, tokens: Sequence[int]) -> None:
        super().commit(tokens)
        self._tables.commit(tokens)

    def _extend(self) -> None:
        """Append the next draft token, and those after it whose logits are known because the tables guessed right."""
        guesses = self._guesses() if self._rolls_back else []
        rows: Sequence[np.ndarray] = self._pass(
            lambda tokens, start: self._model.forward_rows(tokens, start, 1 + len(guesses)),
            [*self.sequence[self.computed :], *guesses],
        )
        for row, guess in zip(rows, [*guesses, None]):
            token = self._draw(row, len(self.sequence))
            self._append(token)
            if token.id != guess:
                break
        self._keep(len(self.sequence) - 1)  # the last token drawn was not read, or another one in its place
        self._rolls_back = self._rolls_back and self.computed > 0

    def _guesses(self) -> list[int]:
        """What the tables say comes next, as far as it is likely enough and the context has room."""
        guesses: list[int] = []
        likely, room = 1.0, min(MAX_GUESSES, self.context_length - 1 - len(self.sequence))
        for token, confidence in self._tables.guess(self.sequence[-LONGEST_LEADER:]):
            likely *= confidence
            if likely < MIN_LIKELY or len(guesses) >= room:
                break
            guesses.append(token)
        return guesses

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        return self._model.forward(tokens, start)

    def truncate(self, length: int) -> int:
        return self._model.truncate(length)

    def close(self) -> None:
        super().close()
        self._model.close()
        self._tables.close()
