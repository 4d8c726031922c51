"""The server's own draft of one session: made by the drafter beside the target, verified like a device's."""

from __future__ import annotations

from dataclasses import dataclass, field

from hw_profiles.fading import FadingRatio
from hw_profiles.speculation import tokens_beside
from opensled.messages import DraftBlock
from opensled.protocol import agreed
from scheduler.estimates import DraftEstimate, Forecast
from verify_server.drafting.base import Proposal
from verify_server.kv.memory import SequenceMemory
from verify_server.pending_draft import DraftLimits
from verify_server.sequence import Sequence
from verify_server.trees import (
    confidences,
    depth,
    depth_first,
    likeliest_first,
    no_deeper,
    seen_of,
    tried,
    without_twins,
)

NO_DRAFT = DraftBlock(0)
# Drafts after which half of what their lengths show is forgotten, and tokens that are assumed beforehand. Chosen.
SHARE, PRIOR = 32.0, 8.0


@dataclass
class OwnDraft:
    """The draft that waits for the next step, and what is known of such drafts."""

    estimate: DraftEstimate
    needs_kv: bool = False  # the drafter computes in KV blocks that the session holds for it
    reads_blocks: bool = False  # the drafter reads in the KV blocks of the text
    block: DraftBlock = NO_DRAFT  # follows the whole text; of a tree the likeliest tokens come first
    read: int = 0  # tokens of the text that the drafter has read
    reach: tuple[float, ...] = ()  # for each token of `block` the chance that it stands; () = unknown
    # Of the tokens that the drafter was asked for, those that it proposed
    share: FadingRatio = field(default_factory=lambda: FadingRatio(SHARE, PRIOR, PRIOR))

    def verified(
        self, most: int | None, device: DraftBlock, sequence: Sequence, limits: DraftLimits
    ) -> DraftBlock:
        """What of it is verified: `most` tokens, None = all. Beside a draft of the `device` as one tree with it."""
        block = self.block
        own = no_deeper(block, sequence.useful).first(len(block.tokens) if most is None else most)
        # No other session loses KV for more than a chain.
        free = sequence.memory.reach() - len(sequence)
        if own.parents:
            own = own.first(min(limits.max_tree, max(limits.max_draft, free)))
        if device.tokens and own.tokens:
            if device.parents or 0 < limits.tree_reads < 2 * len(sequence):
                return NO_DRAFT
            own = own.first(max(0, min(limits.max_tree, free) - len(device.tokens)))
        return depth_first(own) if own.parents else own

    def blocks(self, length: int, memory: SequenceMemory) -> tuple[int, ...]:
        """The session's KV blocks for its drafter; where that computes in them, they cover `length` positions, as far
        as there is free memory."""
        if self.needs_kv:
            memory.grow(min(memory.reach(), length))
        return tuple(memory.blocks) if self.needs_kv or self.reads_blocks else ()

    def take(self, proposal: Proposal, asked: int, length: int) -> None:
        """The drafter was asked for `asked` tokens of a chain after a text of `length`, and this came of it."""
        self.block, self.read = proposal.block, length - proposal.unread
        if self.block.parents:
            tree = without_twins(self.block)
            self.block = likeliest_first(tree, self._chances(tree))
        self.reach = self._chances(self.block)
        tokens = len(self.block.tokens)
        if not proposal.unread:
            self.share.add(min(tokens, asked), asked)
        if tokens:
            self.estimate.arrived(0.0, tokens, 0.0)

    def _chances(self, block: DraftBlock) -> tuple[float, ...]:
        return self.estimate.reach(confidences(block), block.parents)

    def judged(self, verified: DraftBlock, ids: tuple[int, ...]) -> int:
        """The text goes on with `ids` where a part of it, or nothing, was verified; how many tokens of that stand."""
        seen = seen_of(verified, self.block)
        path = agreed(seen, ids)
        self.estimate.judged(depth(seen.tokens, seen.parents), len(path), tried(seen, path))
        return min(len(path), len(verified.tokens))

    def beside(self, verified: DraftBlock, more: int, device: DraftBlock, forecast: Forecast) -> None:
        """A step verified `verified` beside a chain of the device, of which `forecast` tells: `more` tokens of it stand
        than of that."""
        if verified.tokens and device.tokens:
            own = depth(verified.tokens, verified.parents)
            independent = tokens_beside(self.estimate.forecast[:2], forecast[:2], own, len(device.tokens))
            self.estimate.beside(max(0, more), float(independent))
