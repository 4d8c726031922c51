"""What factories of draft models share: their drafters draft for a target of the same vocabulary or of another one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from edge_client.drafters.base import Drafter, DrafterFactory, ModelDrafter
from edge_client.drafters.by_text import ByTextDrafter
from edge_client.drafters.model_text import DraftTokenizer, ModelText
from edge_client.drafters.shared_ids import SharedIdsDrafter
from edge_client.drafters.vocabulary import compare
from opensled.core.messages import ModelInfo
from opensled.text.tokenizer import TargetTokenizer


class ModelFactory(DrafterFactory):
    """One draft model; each of its drafters drafts the target's ids, whatever the model's own are."""

    _tokenizer: TargetTokenizer | None = None  # the target's
    _draft_tokenizer: DraftTokenizer | None = None  # where drafts go by text
    _ends: tuple[int, ...] = ()

    def fit(self, target: ModelInfo, tokenizer: TargetTokenizer | None = None) -> None:
        """See `DrafterFactory`. Raises NotFound where drafts go by text and the model's tokenizer is missing."""
        self.vocabulary = compare(self.name, self.pieces(), target, tokenizer)
        self._tokenizer, self._ends = tokenizer, target.eos_ids
        self._draft_tokenizer = self.tokenizer() if self.vocabulary.kind == "text" else None

    def create(self) -> Drafter:
        return self.adapt(self.create_model())

    def adapt(self, model: ModelDrafter) -> Drafter:
        """`model`, which drafts its own ids, so that it drafts the target's."""
        if self.vocabulary.kind == "shared":
            return SharedIdsDrafter(model, self.vocabulary)
        if self._tokenizer and self._draft_tokenizer:
            return ByTextDrafter(ModelText(model, self._draft_tokenizer), self._tokenizer, self._ends)
        return model

    @abstractmethod
    def create_model(self) -> ModelDrafter:
        """A drafter of the model's own ids."""

    @abstractmethod
    def pieces(self) -> Sequence[str]:
        """The spelling of each id of the model, as in a tokenizer.json."""

    @abstractmethod
    def tokenizer(self) -> DraftTokenizer:
        """The model's own tokenizer. Raises NotFound."""
