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
from verify_server.heads.collapse import ROOT, best_trie
from verify_server.heads.context import HeadContext
from verify_server.heads.ctc import CtcHead
from verify_server.heads.target_parts import TargetParts

NODES = 16  # of the trie of frames from which a chain is drawn


class HeadDrafter(ServerDrafter):
    """What all heads share: `hidden`, and how a token is drawn."""

    reads_blocks: ClassVar[bool] = True

    def __init__(self, head: DraftHead, context: HeadContext, parts: TargetParts) -> None:
        self._context, self._parts = context, parts
        self._head = head
        self._ids = parts.draft_ids.cpu().numpy().astype(np.int64)

    @torch.inference_mode()
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        drafts = self._drafts(asks)
        return [
            Proposal(DraftBlock(ask.length, tuple(draft[: ask.most]))) for ask, draft in zip(asks, drafts)
        ]

    @abstractmethod
    def _drafts(self, asks: Sequence[Ask]) -> list[list[DraftToken]]:
        """Of each ask at least as many tokens as it wants, or all that there are."""

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

    def _token(self, id: int, log_prob: float) -> DraftToken:
        return DraftToken(int(self._ids[id]), float(np.exp(log_prob)))


class PlaceDrafter(HeadDrafter):
    """`opensled serve --drafter specformer`: each output of the head stands for a place of the draft."""

    def __init__(self, head: DraftHead, context: HeadContext, parts: TargetParts) -> None:
        super().__init__(head, context, parts)
        self._every = np.arange(len(self._ids))
        self._places = {int(id): place for place, id in enumerate(self._ids)}

    def _drafts(self, asks: Sequence[Ask]) -> list[list[DraftToken]]:
        logits = self._parts.logits(self._hidden(asks)).float()
        drafts: list[list[DraftToken]] = [[] for _ in asks]
        previous = [self._places.get(ask.tokens[-1], -1) for ask in asks]
        for place in range(min(logits.shape[1], max(ask.most for ask in asks))):
            log_probs = self._after(logits[:, place], previous).log_softmax(-1).cpu().numpy()
            previous = [self._best(ask, place, row, self._every) for ask, row in zip(asks, log_probs)]
            for draft, row, id in zip(drafts, log_probs, previous):
                draft.append(self._token(id, row[id]))
        return drafts

    def _after(self, logits: Tensor, previous: Sequence[int]) -> Tensor:
        """[B, V] with what the tokens before say, where the head has learned that."""
        bias = getattr(self._head, "markov", None)
        return logits if bias is None else logits + bias(torch.tensor(previous, device=logits.device)).float()


class FrameDrafter(HeadDrafter):
    """`opensled serve --drafter ctc`: outputs are frames, and the draft is what they are likely to collapse to.

    The noise belongs to the depth in the trie, the position that a token would take, and not to a frame.
    """

    _head: CtcHead

    def _drafts(self, asks: Sequence[Ask]) -> list[list[DraftToken]]:
        normed = self._hidden(asks)
        logits = self._head.with_blank(self._parts.logits(normed), normed)
        frames = logits.float().log_softmax(-1).cpu().numpy()
        return [self._chain(ask, own) for ask, own in zip(asks, frames)]

    def _chain(self, ask: Ask, frames: NDArray[np.float32]) -> list[DraftToken]:
        trie = best_trie(frames, len(self._ids), most=NODES)
        ids, parents, scores = np.array(trie.ids, np.int64), np.array(trie.parents), np.array(trie.scores)
        chain: list[DraftToken] = []
        last, reached = ROOT, 0.0
        while len(children := np.flatnonzero(parents == last)) and len(chain) < ask.most:
            chances = scores[children] - reached
            best = self._best(ask, len(chain), chances, ids[children])
            last = int(children[best])
            reached = scores[last]
            chain.append(self._token(int(ids[last]), chances[best]))
        return chain
