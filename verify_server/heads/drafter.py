"""Draft heads beside the target as drafters of the server: one pass drafts for all sessions that ask.

Drafts are drawn with each session's own noise at the positions that their tokens would take, so that at every
temperature a head proposes what the target is likely to draw (opensled/noise.py).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opensled.messages import DraftBlock, DraftToken
from opensled.noise import gumbel
from verify_server.drafting.base import Ask, Proposal, ServerDrafter
from verify_server.heads.base import DraftHead
from verify_server.heads.beam import CANDIDATES, WIDTH, Bias, likeliest_tree
from verify_server.heads.collapse import ROOT, Trie, best_chain, best_trie, ranked
from verify_server.heads.context import HeadContext
from verify_server.heads.ctc import CtcHead
from verify_server.heads.markov import NOT_DRAFTED
from verify_server.heads.target_parts import TargetParts
from verify_server.trees import depths

NODES = 24  # of a tree, at most
TOP_K, BEAM = 5, 48  # ids of each frame, and paths of all frames, that are looked at


class HeadDrafter(ServerDrafter):
    """What all heads share: `hidden`, and how a token is drawn."""

    reads_blocks: ClassVar[bool] = True

    def __init__(self, head: DraftHead, context: HeadContext, parts: TargetParts) -> None:
        self._context, self._parts = context, parts
        self._head = head
        self._ids = parts.draft_ids.cpu().numpy().astype(np.int64)

    @torch.inference_mode()
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [
            Proposal(draft.first(ask.most_of_tree or ask.most))
            for ask, draft in zip(asks, self._drafts(asks))
        ]

    @abstractmethod
    def _drafts(self, asks: Sequence[Ask]) -> list[DraftBlock]:
        """Of each ask at least as many tokens as it wants, or all that there are; the likeliest first."""

    def _hidden(self, asks: Sequence[Ask]) -> Tensor:
        """[B, length, d] as the output layer reads them."""
        device = self._parts.draft_ids.device
        # The newest token was decided by the row before it, the last one whose KV is computed.
        blocks, rows = [ask.blocks for ask in asks], [ask.length - 2 for ask in asks]
        newest = torch.tensor([ask.tokens[-1] for ask in asks], device=device)
        hidden = self._head.draft(
            self._context.inputs(blocks, rows),
            self._parts.embedded(newest),
            torch.tensor(rows, device=device),
            self._context.attention(blocks, rows),
        )
        return self._parts.normed(hidden)

    def _block(self, ask: Ask, trie: Trie) -> DraftBlock:
        """Of a ranked trie, with the chance of each token behind its parent as confidence."""
        if not ask.most_of_tree:
            trie = best_chain(trie)
        chances = np.exp(_beyond_parents(trie)).tolist()
        tokens = [DraftToken(int(self._ids[id]), chance) for id, chance in zip(trie.ids, chances)]
        return DraftBlock(ask.length, tuple(tokens), tuple(trie.parents) if ask.most_of_tree else ())


class PlaceDrafter(HeadDrafter):
    """`opensled serve --drafter specformer`: each output of the head stands for a place of the draft.

    The paper drafts a chain. Where a tree is taken, other likely tokens of each place are there, too.
    """

    def __init__(self, head: DraftHead, context: HeadContext, parts: TargetParts) -> None:
        super().__init__(head, context, parts)
        self._places = {int(id): place for place, id in enumerate(self._ids)}
        # Looked up for a few ids at a time: not on a GPU, where each look-up is a round trip.
        self._markov = copy.deepcopy(head.markov).float().cpu() if head.markov is not None else None

    def _drafts(self, asks: Sequence[Ask]) -> list[DraftBlock]:
        logits = self._parts.logits(self._hidden(asks)).float()
        for place, ask in enumerate(asks):
            if ask.params.temperature > 0:
                logits[place] = self._with_noise(ask, logits[place])
        found = logits.topk(min(CANDIDATES, logits.shape[-1]))
        values, ids = found.values.cpu().numpy(), found.indices.cpu().numpy()
        return [self._draft(ask, *own) for ask, *own in zip(asks, values, ids)]

    def _with_noise(self, ask: Ask, logits: Tensor) -> Tensor:
        noise = [gumbel(ask.key, ask.length + place, self._ids) for place in range(len(logits))]
        return logits / ask.params.temperature + torch.from_numpy(np.array(noise)).to(logits)

    def _draft(self, ask: Ask, logits: NDArray[np.float32], ids: NDArray[np.int64]) -> DraftBlock:
        newest = self._places.get(ask.tokens[-1], NOT_DRAFTED)
        width = WIDTH if ask.most_of_tree else 1
        trie = likeliest_tree(logits, ids, newest, width, self._bias(ask.params.temperature or 1.0))
        return self._block(ask, ranked(trie, NODES))

    def _bias(self, temperature: float) -> Bias | None:
        markov = self._markov
        if markov is None:
            return None
        return lambda tokens, ids: markov.among(tokens, ids) / temperature


class FrameDrafter(HeadDrafter):
    """`opensled serve --drafter ctc`: outputs are frames, and a draft is the likeliest of what they collapse to.

    The noise belongs to the depth in the trie, the position that a token would take, and not to a frame.
    """

    _head: CtcHead

    def _drafts(self, asks: Sequence[Ask]) -> list[DraftBlock]:
        normed = self._hidden(asks)
        logits = self._head.with_blank(self._parts.logits(normed), normed)
        frames = logits.float().log_softmax(-1).cpu().numpy()
        return [self._draft(ask, own) for ask, own in zip(asks, frames)]

    def _draft(self, ask: Ask, frames: NDArray[np.float32]) -> DraftBlock:
        trie = best_trie(frames, len(self._ids), TOP_K, BEAM, NODES)
        if ask.params.temperature > 0:
            trie = ranked(self._drawn(ask, trie), NODES)
        return self._block(ask, trie)

    def _drawn(self, ask: Ask, trie: Trie) -> Trie:
        """With the chance of each node to be drawn by the target. The noise makes it likely which of the children of a
        node that is; what all of them have together stays."""
        ids, beyond, depth = np.array(trie.ids, int), _beyond_parents(trie), depths(trie.parents)
        scores = [0.0] * len(ids)
        for parent, children in _families(trie).items():
            noise = gumbel(ask.key, ask.length + depth[children[0]] - 1, self._ids[ids[children]])
            drawn = np.exp(_normalized(beyond[children] / ask.params.temperature + noise))
            together = np.exp(beyond[children]).sum()
            for child, chance in zip(children, drawn):
                above = scores[parent] if parent != ROOT else 0.0
                scores[child] = above + float(np.log(min(1.0, chance * together)))
        return trie._replace(scores=scores)


def _beyond_parents(trie: Trie) -> NDArray[np.float64]:
    """Of each node the log-probability behind its parent."""
    reached = np.array([*trie.scores, 0.0])  # the last one is that of ROOT
    return reached[:-1] - reached[trie.parents]


def _families(trie: Trie) -> dict[int, list[int]]:
    """By parent its children; a family stands before those of its members."""
    found: dict[int, list[int]] = {}
    for node, parent in enumerate(trie.parents):
        found.setdefault(parent, []).append(node)
    return found


def _normalized(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values - np.logaddexp.reduce(values)
