"""Draft heads beside the target as drafters of the server, for all sessions that ask at once."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opensled.core.messages import DraftBlock
from opensled.core.noise import gumbel
from verify_server.drafting.heads.base import DraftHead
from verify_server.drafting.heads.beam import CANDIDATES, Bias
from verify_server.drafting.heads.context import HeadContext
from verify_server.drafting.heads.ctc import CtcHead
from verify_server.drafting.heads.head_drafts import Drawing, block_of, frame_trie, place_trie
from verify_server.drafting.heads.markov import NOT_DRAFTED
from verify_server.drafting.heads.target_parts import TargetParts
from verify_server.round.drafter import Ask, Proposal, ServerDrafter


class HeadDrafter(ServerDrafter):
    """What all heads share: drafts of as many tokens as each session wants, drawn with its own noise."""

    pass_share, max_passes = 0.1, 1  # chosen

    def __init__(self, head: DraftHead, context: HeadContext, parts: TargetParts) -> None:
        self._context, self._parts = context, parts
        self._head = head
        self._ids = parts.draft_ids.cpu().numpy().astype(np.int64)

    @torch.inference_mode()
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [
            Proposal(draft.first(ask.max_of_tree or ask.most)) for ask, draft in zip(asks, self._drafts(asks))
        ]

    @abstractmethod
    def _drafts(self, asks: Sequence[Ask]) -> list[DraftBlock]:
        """Of each ask at least as many tokens as it wants, or all that there are; the likeliest first."""

    def _with_noise(self, ask: Ask, logits: Tensor) -> Tensor:
        """What is drawn from by taking the largest: of logits [places, V], from place 0 on."""
        if ask.params.temperature <= 0:
            return logits
        noise = [gumbel(ask.key, ask.length + place, self._ids) for place in range(len(logits))]
        return logits / ask.params.temperature + torch.from_numpy(np.array(noise)).to(logits)

    def _hidden_states(self, asks: Sequence[Ask]) -> Tensor:
        """[B, length, d] as the output layer reads them."""
        device = self._parts.draft_ids.device
        # The newest token was decided by the row before it, the last one whose KV is computed.
        blocks, rows = [ask.blocks for ask in asks], [ask.length - 2 for ask in asks]
        newest = torch.tensor([ask.tokens[-1] for ask in asks], device=device)
        hidden = self._head.draft(
            self._context.inputs(blocks, rows),
            self._parts.embed(newest),
            torch.tensor(rows, device=device),
            self._context.attention(blocks, rows),
        )
        return self._parts.normalize(hidden)


class PlaceDrafter(HeadDrafter):
    """`opensled serve --server-drafter specformer`: each output of the head stands for a place of the draft.

    The paper drafts a chain. Where a tree is taken, other likely tokens of each place are there, too.
    """

    def __init__(self, head: DraftHead, context: HeadContext, parts: TargetParts) -> None:
        super().__init__(head, context, parts)
        self._places = {int(id): place for place, id in enumerate(self._ids)}
        # Looked up for a few ids at a time: not on a GPU, where each look-up is a round trip.
        self._markov = copy.deepcopy(head.markov).float().cpu() if head.markov is not None else None

    def _drafts(self, asks: Sequence[Ask]) -> list[DraftBlock]:
        logits = self._parts.logits(self._hidden_states(asks)).float()
        for place, ask in enumerate(asks):
            logits[place] = self._with_noise(ask, logits[place])
        found = logits.topk(min(CANDIDATES, logits.shape[-1]))
        values, ids = found.values.cpu().numpy(), found.indices.cpu().numpy()
        return [self._draft(ask, *own) for ask, *own in zip(asks, values, ids)]

    def _draft(self, ask: Ask, logits: NDArray[np.float32], ids: NDArray[np.int64]) -> DraftBlock:
        newest = self._places.get(ask.tokens[-1], NOT_DRAFTED)
        is_tree = ask.max_of_tree > 0
        trie = place_trie(logits, ids, newest, is_tree, self._bias(ask.params.temperature or 1.0))
        return block_of(trie, self._ids, ask.length, is_tree)

    def _bias(self, temperature: float) -> Bias | None:
        markov = self._markov
        if markov is None:
            return None
        return lambda tokens, ids: markov.among(tokens, ids) / temperature


class FrameDrafter(HeadDrafter):
    """`opensled serve --server-drafter ctc`: outputs are frames, a draft is the likeliest that they collapse to."""

    _head: CtcHead

    def _drafts(self, asks: Sequence[Ask]) -> list[DraftBlock]:
        normed = self._hidden_states(asks)
        logits = self._head.with_blank(self._parts.logits(normed), normed)
        frames = logits.float().log_softmax(-1).cpu().numpy()
        return [self._draft(ask, own) for ask, own in zip(asks, frames)]

    def _draft(self, ask: Ask, frames: NDArray[np.float32]) -> DraftBlock:
        drawing = Drawing(ask.key, ask.length, ask.params.temperature)
        return block_of(frame_trie(frames, self._ids, drawing), self._ids, ask.length, ask.max_of_tree > 0)
