"""The layer behind an exit in training, as the trainer and the held-out walk of heads know it.

It is trained on whole windows of a text: its input is the state that leaves the exit's last layer, which the capture
has kept, so that no layer of the target is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from opensled_training.exits.config import Weights
from opensled_training.exits.exit_losses import Terms, Wanted, fused, terms
from opensled_training.exits.exit_source import FUSED, imitated
from opensled_training.heads.batches import Batch, batch_of
from opensled_training.heads.heldout import chain_of
from opensled_training.heads.windows import Window
from verify_server.heads.collapse import Trie

SEED = 31
WAY = "chain"
EQUAL = Weights()


@dataclass(frozen=True)
class ExitShape:
    """What a training of the layer is known by."""

    layers: int  # of the target before the exit
    taps: tuple[int, ...]  # the state that leaves them, then those that are imitated
    begun: str
    kind: str = "exit"


class NoLayer(nn.Module):
    """The exit without a layer behind it."""

    def forward(self, hidden: Tensor, **_: Any) -> Tensor:
        return hidden


@dataclass(frozen=True)
class ExitPupil:
    """A `Learner`; `head` is the layer that is trained, a part of `model`."""

    model: LlamaForCausalLM
    head: nn.Module
    shape: ExitShape
    length: int  # tokens of a draft, when it is measured
    weights: Weights = EQUAL
    dtype: torch.dtype = torch.float32  # that it multiplies in
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(SEED))

    @property
    def places(self) -> np.ndarray:
        """Every id of the target can be drafted."""
        return np.arange(self.model.config.vocab_size)

    def batch(self, windows: Sequence[Window], rows: Sequence[np.ndarray]) -> Batch:
        return batch_of(windows, rows, self.places, self.length)

    def loss(self, batch: Batch, name: str) -> Tensor:
        """Of what `weights` say; a draft's first token stands behind the row after its start."""
        return self.terms(batch).total(self.weights)

    def terms(self, batch: Batch) -> Terms:
        rows, aims = batch.starts + 1, batch.aims
        kept = batch.hidden[rows, 1:]  # the last of them is behind the norm already
        with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
            deep = torch.cat([self.model.model.norm(kept[:, : FUSED - 1]), kept[:, FUSED - 1 :]], dim=1)
            wanted = Wanted(fused(deep), aims.top[:, 0], aims.probs[:, 0], aims.tokens[:, 0])
            return terms(self.normed(batch)[rows], self.model.lm_head.weight, wanted, self.generator)

    def normed(self, batch: Batch) -> Tensor:
        """[n, d]: of all rows, as the output layer reads them. Each window is a text of its own."""
        pieces = zip(batch.hidden[:, 0].split(batch.sizes), batch.positions.split(batch.sizes))
        found: Tensor = self.model.model.norm(torch.cat([self._behind(*piece) for piece in pieces]))
        return found

    def _behind(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """What the layer makes of a window's rows [n, d] at `positions` [n]."""
        turned = self.model.model.rotary_emb(hidden, positions[None])
        found: Tensor = self.head(hidden[None], position_embeddings=turned, attention_mask=None)
        return found[0]

    def guesses(self, batch: Batch) -> Tensor:
        """[n]: the id that the exit draws greedily after each row."""
        found: Tensor = self.model.lm_head(self.normed(batch)).argmax(-1)
        return found

    def drafts(self, batch: Batch) -> dict[str, list[Trie]]:
        """As far as a draft is right it has read the text itself, and where it is wrong it ends."""
        guesses = self.guesses(batch).tolist()
        chains = [chain_of(guesses[start + 1 : start + 1 + self.length]) for start in batch.starts.tolist()]
        return {WAY: chains}


def new_pupil(
    model: LlamaForCausalLM,
    layers: int,
    all_layers: int,
    begun: str,
    length: int,
    weights: Weights = EQUAL,
) -> ExitPupil:
    """`model`: see exit_model.py; `all_layers`: of its target."""
    shape = ExitShape(layers, (layers, *imitated(all_layers)), begun)
    return ExitPupil(model, model.model.layers[-1], shape, length, weights)
