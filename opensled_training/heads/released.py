"""The baseline `ctc-released`: what the authors of CTC-drafter have released, which is not what their paper says.

The paper (arXiv 2412.00061) drafts all frames in one pass; that is `ctc`. The code (github.com/ZhuofanWen/CTC-drafter,
commit cf2a35c, model/cnets.py and model/utils.py) is a drafter like EAGLE's: one decoder layer predicts the target's
next hidden state, and drafts token by token. Only its loss and its candidates know of CTC. It is trained and measured
along held-out texts, and never served.

Three things are ours. The code removes repeats from its candidates and then compares them with logits of other places;
here a token stands where it would stand in the text. Its blank is id 0, the unknown token, which no text has; here it
is the first of the ids that the target writes least. And its noise is wider in shorter texts; here it is always that of
a text of 512 tokens, for windows are pieces of texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from opensled_training.heads.batches import Batch, batch_of
from opensled_training.heads.config import RELEASED
from opensled_training.heads.draft_vocabulary import places_of
from opensled_training.heads.heldout import NODES, chain_of
from opensled_training.heads.pupil import shape_of
from opensled_training.heads.released_loss import FRAMES, released_loss
from opensled_training.heads.window_attention import WindowAttention
from opensled_training.heads.windows import Window
from verify_server.heads.base import Attention, Context, HeadShape
from verify_server.heads.collapse import Trie, best_trie, collapse
from verify_server.heads.layers import KeysValues, Queries, RmsNorm, SwiGlu, rotated
from verify_server.heads.target_parts import TargetParts

TOP_K = 10  # ids of each step
PATHS = 64  # likeliest ones over these; the code has a fixed tree of 63 nodes
NOISE = 0.2  # its width on hidden states, for a draft reads predicted ones, which are never quite right


class ReleasedHead(nn.Module):
    """One decoder layer over pairs of a hidden state and the token behind it, without a norm before its attention."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.joined = nn.Linear(2 * shape.size, shape.size)
        self.context, self.queries = KeysValues(shape), Queries(shape)
        self.inner_norm, self.inner = RmsNorm(shape.size), SwiGlu(shape.size, shape.inner)

    def read(self, hidden: Tensor, embedded: Tensor, positions: Tensor) -> Context:
        """Of n rows at `positions`: hidden states [n, d], and embeddings [n, d] of the token behind each."""
        inputs = self.joined(torch.cat([embedded, hidden], dim=-1))
        keys, values = self.context(inputs)
        return Context(inputs, rotated(keys, positions, self.shape.rope_theta), values)

    def predict(
        self, inputs: Tensor, positions: Tensor, attend: Attention, own: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """[B, d]: hidden states of the target one row further, as its output layer reads them."""
        queries = rotated(self.queries(inputs), positions, self.shape.rope_theta)
        states = inputs + self.queries.back(attend(queries[:, None], own)[:, 0])
        found: Tensor = states + self.inner(self.inner_norm(states))
        return found


@dataclass(frozen=True)
class ReleasedPupil:
    """A `Learner`."""

    head: ReleasedHead  # in float32
    parts: TargetParts
    places: np.ndarray  # of the target's ids in the draft vocabulary
    blank: int  # of the draft vocabulary
    dtype: torch.dtype  # that it multiplies in

    @property
    def shape(self) -> HeadShape:
        return self.head.shape

    def batch(self, windows: Sequence[Window], rows: Sequence[np.ndarray]) -> Batch:
        return batch_of(windows, rows, self.places, max(self.shape.length, FRAMES))

    def loss(self, batch: Batch, name: str) -> Tensor:
        """It has one of its own, whatever `name` says."""
        noise = NOISE * (torch.rand_like(batch.hidden[:, 0]) - 0.5)
        predicted = self.predicted(batch, batch.hidden[:, 0] + noise)
        with self._autocast():
            logits = self.parts.logits(predicted)
        return released_loss(predicted, logits.float().log_softmax(-1), batch, self.blank)

    def predicted(self, batch: Batch, hidden: Tensor) -> Tensor:
        """[n, d]: behind every row of a batch the target's next hidden state, from its own states `hidden` [n, d]."""
        with self._autocast():
            context = self._read(batch, hidden)
            attend = WindowAttention(context, batch.sizes, [torch.arange(size) for size in batch.sizes])
            return self.head.predict(context.inputs, batch.positions, attend).float()

    def drafts(self, batch: Batch) -> dict[str, list[Trie]]:
        """The greedy path of each start, and the best nodes of all paths, whose chances are added up; both collapsed.

        Paths are combined from the ids of all steps, though each step has only seen the greedy path before it.
        """
        steps = self.steps(batch).numpy()
        greedy = [collapse(path, self.blank) for path in steps.argmax(-1).tolist()]
        tries = [best_trie(own, self.blank, TOP_K, PATHS, NODES) for own in steps]
        return {"chain": list(map(chain_of, greedy)), "tree": tries}

    def steps(self, batch: Batch) -> Tensor:
        """Log-probabilities [B, length, V] of a draft's steps, each behind the likeliest token of the one before."""
        with self._autocast():
            context = self._read(batch, batch.hidden[:, 0])
            attend = WindowAttention(context, batch.sizes, batch.rows)
            logits = self._drafted(context.inputs[batch.starts], batch.positions[batch.starts], attend)
        return torch.stack(logits, dim=1).float().log_softmax(-1)

    def _drafted(self, inputs: Tensor, positions: Tensor, attend: Attention) -> list[Tensor]:
        own, found = None, []
        for _ in range(self.shape.length):
            hidden = self.head.predict(inputs, positions, attend, own)
            found.append(self.parts.logits(hidden))
            newest = self.parts.embedded(self.parts.draft_ids[found[-1].argmax(-1)])
            positions = positions + 1
            row = self.head.read(hidden, newest, positions)
            inputs, own = row.inputs, _with_row(own, row)
        return found

    def _read(self, batch: Batch, hidden: Tensor) -> Context:
        # Behind a window's last row stands another window's token, but no draft starts there, nor sees it.
        following = self.parts.embedded(batch.ids.roll(-1))
        return self.head.read(hidden, following, batch.positions)

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32)


def _with_row(own: tuple[Tensor, Tensor] | None, row: Context) -> tuple[Tensor, Tensor]:
    """Keys and values [B, rows, KV heads, head size] of drafts that are one row longer."""
    new = row.keys[:, None], row.values[:, None]
    return new if own is None else (torch.cat([own[0], new[0]], dim=1), torch.cat([own[1], new[1]], dim=1))


def new_released(
    network: LlamaForCausalLM, written: np.ndarray, ids: np.ndarray, length: int, dtype: torch.dtype
) -> ReleasedPupil:
    """An untrained one, which drafts `ids` in `length` steps, for a target that has `written` these tokens."""
    size = network.config.vocab_size
    blank = int(np.bincount(written, minlength=size).argmin())
    ids = np.union1d(ids, [blank])
    head = ReleasedHead(shape_of(network, RELEASED, len(ids), length))
    places = places_of(ids, size)
    parts = TargetParts(network, torch.from_numpy(ids.astype(np.int64)))
    return ReleasedPupil(head, parts, places, int(places[blank]), dtype)
