"""A head in training, with what it has in common with its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from opensled_training.heads.batches import Batch, batch_of
from opensled_training.heads.draft_vocabulary import places_of
from opensled_training.heads.window_attention import WindowAttention
from opensled_training.heads.windows import Window
from verify_server.heads import HEADS
from verify_server.heads.base import DraftHead, HeadShape
from verify_server.heads.ctc import BLANK_KIND
from verify_server.heads.specformer import default_taps
from verify_server.heads.target_parts import TargetParts


@dataclass(frozen=True)
class Pupil:
    head: DraftHead  # in float32
    parts: TargetParts
    places: np.ndarray  # of the target's ids in the draft vocabulary
    dtype: torch.dtype  # that it multiplies in

    def batch(self, windows: Sequence[Window], rows: Sequence[np.ndarray]) -> Batch:
        return batch_of(windows, rows, self.places, self.head.shape.length)

    def logits(self, batch: Batch) -> Tensor:
        """[B, length, V] of a batch, without the bias between neighbours; of kind `ctc` with the blank as last id."""
        head, parts = self.head, self.parts
        with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
            context = head.read(batch.hidden, batch.positions)
            attend = WindowAttention(context, batch.sizes, batch.rows)
            inputs, positions = context.inputs[batch.starts], batch.positions[batch.starts]
            hidden = head.draft(inputs, parts.embedded(batch.newest), positions, attend)
            normed = parts.normed(hidden)
            logits = parts.logits(normed)
            found: Tensor = head.with_blank(logits, normed) if has_blank(head) else logits
        return found.float()

    def log_probs(self, batch: Batch) -> Tensor:
        """The same, normalized, and each token after the one that the target wrote before it."""
        logits = self.logits(batch)
        if self.head.markov is not None:
            logits = logits + self.head.markov(batch.aims.previous)
        return logits.log_softmax(-1)


def has_blank(head: DraftHead) -> bool:
    return head.shape.kind == BLANK_KIND


def new_pupil(
    network: LlamaForCausalLM,
    kind: str,
    ids: np.ndarray,
    length: int,
    markov: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Pupil:
    """An untrained head for a target. Raises UsageError and UnsupportedModel."""
    config = network.config
    shape = HeadShape(
        kind=kind,
        taps=default_taps(config.num_hidden_layers)[0 if kind == "specformer" else -1 :],
        size=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        inner=config.intermediate_size,
        length=length,
        vocabulary=len(ids),
        rope_theta=config.rope_parameters["rope_theta"],
        markov=markov,
    )
    head = HEADS.get(kind)(shape)
    parts = TargetParts(network, torch.from_numpy(ids.astype(np.int64)))
    return Pupil(head, parts, places_of(ids, config.vocab_size), dtype)
