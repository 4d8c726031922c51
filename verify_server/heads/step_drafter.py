"""A recurrent head beside the target as a drafter of the server: a step drafts one token for all sessions that ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opensled.drafting.beam import CANDIDATES
from opensled.drafting.head_drafts import block_of, spine_trie
from opensled.messages import DraftBlock
from verify_server.drafting.base import Ask
from verify_server.heads.drafter import HeadDrafter
from verify_server.heads.owl import OwlHead, OwlState


class StepDrafter(HeadDrafter):
    """`opensled serve --drafter owl`.

    Where a tree is taken, other likely tokens stand beside those of the chain, and nothing behind them.
    """

    passes_per_token: ClassVar[bool] = True
    _head: OwlHead

    def _drafts(self, asks: Sequence[Ask]) -> list[DraftBlock]:
        steps = min(self._head.shape.length, max(ask.most_of_tree or ask.most for ask in asks))
        if steps < 1:
            return [DraftBlock(ask.length) for ask in asks]
        logits, ids = (found.cpu().numpy() for found in self._steps(asks, steps))
        return [self._draft(ask, *own) for ask, *own in zip(asks, logits, ids)]

    def _draft(self, ask: Ask, logits: NDArray[np.float32], ids: NDArray[np.int64]) -> DraftBlock:
        is_tree = ask.most_of_tree > 0
        return block_of(spine_trie(logits, ids, is_tree), self._ids, ask.length, is_tree)

    def _steps(self, asks: Sequence[Ask], count: int) -> tuple[Tensor, Tensor]:
        """Of each step the likeliest ids and their logits with the noise, [B, steps, C], the best first."""
        head, parts, logits, ids = self._head, self._parts, [], []
        newest = torch.tensor([ask.tokens[-1] for ask in asks], device=parts.draft_ids.device)
        state = self._begun(asks)
        for place in range(count):
            state = head.step(state, parts.embedded(newest))
            scores = parts.logits(parts.normed(head.said(state))).float()
            for row, ask in enumerate(asks):
                scores[row] = self._with_noise(ask, scores[row : row + 1], place)[0]
            best = scores.topk(min(CANDIDATES, scores.shape[-1]))
            newest = parts.draft_ids[best.indices[:, 0]]
            logits.append(best.values)
            ids.append(best.indices)
        return torch.stack(logits, dim=1), torch.stack(ids, dim=1)

    def _begun(self, asks: Sequence[Ask]) -> OwlState:
        """From the row before each newest token, the last one that is computed."""
        rows = [ask.length - 2 for ask in asks]
        return self._head.begin(self._context.inputs([ask.blocks for ask in asks], rows))
