"""Draft heads beside the target as drafters of the server: one pass drafts for all sessions that ask.

Drafts are drawn with each session's own noise at the positions that their tokens would take, so that at every
temperature a head proposes what the target is likely to draw (opensled/noise.py).
"""

from __future__ import annotations

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
from verify_server.heads.collapse import ROOT, Trie, best_chain, best_trie, ranked
from verify_server.heads.context import HeadContext
from verify_server.heads.ctc import CtcHead
from verify_server.heads.target_parts import TargetParts
from verify_server.trees import depths

TOP_K, BEAM = 5, 48  # ids of each frame, and paths of all, that are looked at
NODES = 24  # of the trie of these


class HeadDrafter(ServerDrafter):
    """What all heads share: `hidden`, and how a token is drawn."""

    reads_blocks: ClassVar[bool] = True

    def __init__(self, head: DraftHead, context: HeadContext, parts: TargetParts) -> None:
        self._context, self._parts = context, parts
        self._head = head
        self._ids = parts.draft_ids.cpu().numpy().astype(np.int64)

    @torch.inference_mode()
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [Proposal(draft.first(ask.most)) for ask, draft in zip(asks, self._drafts(asks))]

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

    def _best(self, ask: Ask, place: int, log_probs: NDArray[np.float64], ids: NDArray[np.int64]) -> int:
        """Which of `ids`, places in the draft vocabulary, is drawn for a place of the draft."""
        if ask.params.temperature <= 0:
            return int(log_probs.argmax())
        noise = gumbel(ask.key, ask.length + place, self._ids[ids])
        return int((log_probs / ask.params.temperature + noise).argmax())

    def _token(self, id: int, chance: float) -> DraftToken:
        return DraftToken(int(self._ids[id]), chance)


class PlaceDrafter(HeadDrafter):
    """`opensled serve --drafter specformer`: each output of the head stands for a place of the draft."""

    def __init__(self, head: DraftHead, context: HeadContext, parts: TargetParts) -> None:
        super().__init__(head, context, parts)
        self._every = np.arange(len(self._ids))
        self._places = {int(id): place for place, id in enumerate(self._ids)}

    def _drafts(self, asks: Sequence[Ask]) -> list[DraftBlock]:
        logits = self._parts.logits(self._hidden(asks)).float()
        drafts: list[list[DraftToken]] = [[] for _ in asks]
        previous = [self._places.get(ask.tokens[-1], -1) for ask in asks]
        for place in range(min(logits.shape[1], max(ask.most for ask in asks))):
            log_probs = self._after(logits[:, place], previous).log_softmax(-1).cpu().numpy()
            previous = [self._best(ask, place, row, self._every) for ask, row in zip(asks, log_probs)]
            for draft, row, id in zip(drafts, log_probs, previous):
                draft.append(self._token(id, float(np.exp(row[id]))))
        return [DraftBlock(ask.length, tuple(draft)) for ask, draft in zip(asks, drafts)]

    def _after(self, logits: Tensor, previous: Sequence[int]) -> Tensor:
        """[B, V] with what the tokens before say, where the head has learned that."""
        bias = getattr(self._head, "markov", None)
        return logits if bias is None else logits + bias(torch.tensor(previous, device=logits.device)).float()


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
        if not ask.takes_tree:
            trie = best_chain(trie)
        chances = np.exp(_beyond_parents(trie)).tolist()
        tokens = tuple(map(self._token, trie.ids, chances))
        return DraftBlock(ask.length, tokens, tuple(trie.parents) if ask.takes_tree else ())

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
