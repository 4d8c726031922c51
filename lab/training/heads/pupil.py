"""A head in training, with what it has in common with its target."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from lab.training.heads.batches import Batch, batch_of
from lab.training.heads.draft_vocabulary import places_of
from lab.training.heads.losses import LOSSES
from lab.training.heads.window_attention import WindowAttention
from lab.training.heads.windows import Window
from verify_server.drafting.heads import HEADS
from verify_server.drafting.heads.base import DraftHead, HeadShape
from verify_server.drafting.heads.beam import CANDIDATES, WIDTH, likeliest_tree
from verify_server.drafting.heads.collapse import ROOT, Trie, best_chain, best_trie, rank
from verify_server.drafting.heads.markov import MarkovBias
from verify_server.drafting.heads.target_parts import TargetParts

NODES = 16  # of a tree


@dataclass(frozen=True)
class Pupil:
    """What the trainer and the held-out walk know of a head."""

    head: DraftHead  # in float32
    parts: TargetParts
    places: np.ndarray  # of the target's ids in the draft vocabulary
    dtype: torch.dtype  # that it multiplies in

    @property
    def shape(self) -> HeadShape:
        return self.head.shape

    def batch(self, windows: Sequence[Window], rows: Sequence[np.ndarray]) -> Batch:
        return batch_of(windows, rows, self.places, self.head.shape.length)

    def loss(self, batch: Batch, name: str) -> Tensor:
        return LOSSES[name](self.log_probs(batch), batch.aims)

    def drafts(self, batch: Batch) -> dict[str, list[Trie]]:
        """By way of drafting, `chain` and `tree`, a draft from each start; ids are of the draft vocabulary.

        A head is judged by the last way.
        """
        if has_blank(self.head):
            frames = self.log_probs(batch).numpy()
            tries = [best_trie(own, own.shape[-1] - 1, most=NODES) for own in frames]
            return {"chain": list(map(best_chain, tries)), "tree": tries}
        logits, previous = self.logits(batch), torch.from_numpy(self.places)[batch.newest]
        chains = greedy_chain(logits, previous, self.head.markov)
        return {"chain": list(map(_chain, chains.tolist())), "tree": self._trees(logits, previous)}

    def _trees(self, logits: Tensor, previous: Tensor) -> list[Trie]:
        bias = self.head.markov.among if self.head.markov is not None else None
        found = logits.topk(min(CANDIDATES, logits.shape[-1]))
        drafts = zip(found.values.numpy(), found.indices.numpy(), previous.tolist())
        trees = (likeliest_tree(values, ids, newest, WIDTH, bias) for values, ids, newest in drafts)
        return [rank(tree, NODES) for tree in trees]

    def logits(self, batch: Batch) -> Tensor:
        """[B, length, V] of a batch, without the bias between neighbours; of kind `ctc` with the blank as last id."""
        head, parts = self.head, self.parts
        with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
            context = head.read(batch.hidden, batch.positions)
            attend = WindowAttention(context, batch.sizes, batch.rows)
            inputs, positions = context.inputs[batch.starts], batch.positions[batch.starts]
            hidden = head.draft(inputs, parts.embed(batch.newest), positions, attend)
            normed = parts.normalize(hidden)
            logits = parts.logits(normed)
            found: Tensor = head.with_blank(logits, normed) if has_blank(head) else logits
        return found.float()

    def log_probs(self, batch: Batch) -> Tensor:
        """The same, normalized, and each token after the one that the target wrote before it."""
        logits = self.logits(batch)
        if self.head.markov is not None:
            logits = logits + self.head.markov(batch.aims.previous)
        return logits.log_softmax(-1)


def _chain(ids: Sequence[int]) -> Trie:
    """Without scores, which a walk does not read."""
    return Trie(list(ids), list(range(ROOT, len(ids) - 1)), [])


def has_blank(head: DraftHead) -> bool:
    return head.shape.kind == "ctc"


def new_pupil(
    network: LlamaForCausalLM,
    kind: str,
    ids: np.ndarray,
    length: int,
    markov: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Pupil:
    """An untrained head for a target. Raises UsageError and UnsupportedModel."""
    head = HEADS.get(kind)(shape_of(network, kind, len(ids), length, markov))
    parts = TargetParts(network, torch.from_numpy(ids.astype(np.int64)))
    return Pupil(head, parts, places_of(ids, network.config.vocab_size), dtype)


def shape_of(
    network: LlamaForCausalLM, kind: str, vocabulary: int, length: int, markov: int = 0
) -> HeadShape:
    """Of a head that is as wide as a layer of its target."""
    config = network.config
    return HeadShape(
        kind=kind,
        taps=default_taps(config.num_hidden_layers)[0 if kind == "specformer" else -1 :],
        size=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        inner=config.intermediate_size,
        length=length,
        vocabulary=vocabulary,
        rope_theta=config.rope_parameters["rope_theta"],
        markov=markov,
    )


def default_taps(layers: int) -> tuple[int, ...]:
    """The paper's: the embedding, the middle, the last layer's input, and what leaves the final norm."""
    return 0, layers // 2, layers - 1, layers


def greedy_chain(logits: Tensor, previous: Tensor, bias: MarkovBias | None) -> Tensor:
    """The likeliest draft [B, length] of `logits` [B, length, V] after the tokens `previous` [B], one by one."""
    if bias is None:
        return logits.argmax(-1)
    chain = []
    for place in range(logits.shape[1]):
        previous = (logits[:, place] + bias(previous)).argmax(-1)
        chain.append(previous)
    return torch.stack(chain, dim=1)
