"""`opensled serve --drafter eagle3`: a head that others have published drafts a chain, one pass a token.

A token is drawn with the session's own noise at the position that it would take, as `HeadDrafter`'s are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from opensled.messages import DraftBlock
from opensled.noise import gumbel
from verify_server.drafting.base import Ask, Proposal, ServerDrafter
from verify_server.heads.base import Attention
from verify_server.heads.eagle3 import Eagle3Head
from verify_server.heads.feature_context import FeatureContext


class Eagle3Drafter(ServerDrafter):
    """For all sessions at once."""

    reads_blocks: ClassVar[bool] = True
    passes_per_token: ClassVar[bool] = True

    def __init__(self, head: Eagle3Head, context: FeatureContext, draft_ids: Tensor) -> None:
        """`draft_ids` [V]: the target's id of each id that the head can draft."""
        self._head, self._context = head, context
        self._ids = draft_ids
        self._known = draft_ids.cpu().numpy()

    @torch.inference_mode()
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        # One that is not computed yet has no features.
        texts = [ask for ask in asks if ask.length > 1]
        readings = dict(zip([ask.session for ask in texts], self._context.catch_up(texts)))
        ready = [ask for ask in texts if not readings[ask.session].unread]
        drafted = dict(zip([ask.session for ask in ready], self._chains(ready) if ready else ()))
        proposals = []
        for ask in asks:
            made = drafted.get(ask.session, Proposal(DraftBlock(ask.length)))
            reading = readings.get(ask.session)
            proposals.append(made._replace(read=reading.rows, unread=reading.unread) if reading else made)
        return proposals

    def forget(self, session: int) -> None:
        self._context.forget(session)

    def _chains(self, asks: Sequence[Ask]) -> list[Proposal]:
        ids, chances = self.drafted(asks)
        return [ask.chain(zip(*own)) for ask, *own in zip(asks, ids.tolist(), chances.tolist())]

    def drafted(self, asks: Sequence[Ask]) -> tuple[Tensor, Tensor]:
        """Ids of the target, and how likely the head finds each, both [B, the most that one asks for]."""
        device, context = self._ids.device, self._context
        tokens = torch.tensor([ask.tokens[-1] for ask in asks], device=device)
        positions = torch.tensor([ask.length - 1 for ask in asks], device=device)
        features, attend = context.newest(asks), _Growing(context.attention(asks))
        ids, chances = [], []
        for place in range(max(ask.most for ask in asks)):
            states = self._head.step(context.embedded(tokens), features, positions + place, attend)
            logits, features = self._head.said(states)
            found = self._scores(asks, place, logits).softmax(-1).max(-1)
            tokens = self._ids[found.indices]
            ids.append(tokens)
            chances.append(found.values)
        return torch.stack(ids, dim=1), torch.stack(chances, dim=1)

    def _scores(self, asks: Sequence[Ask], place: int, logits: Tensor) -> Tensor:
        """[B, V], the noise of each session in them."""
        scores = logits.float()
        for row, ask in enumerate(asks):
            if ask.params.temperature > 0:
                noise = gumbel(ask.key, ask.length + place, self._known)
                scores[row] = scores[row] / ask.params.temperature + torch.from_numpy(np.asarray(noise)).to(
                    scores
                )
        return scores


class _Growing:
    """Attention over the rows of texts, and over those of the draft so far."""

    def __init__(self, attend: Attention) -> None:
        self._attend = attend
        self._own: tuple[Tensor, Tensor] | None = None

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See `Eagle3Head.step`."""
        new = keys[:, None], values[:, None]
        self._own = (
            new if self._own is None else tuple(torch.cat(pair, dim=1) for pair in zip(self._own, new))
        )
        return self._attend(queries[:, None], self._own)[:, 0]
