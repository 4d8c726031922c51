"""The server's own draft of one session: made by the drafter beside the target, verified like a device's."""

from __future__ import annotations

from dataclasses import dataclass, field

from hw_profiles.fading import FadingRatio
from hw_profiles.speculation import tokens_beside
from opensled.messages import DraftBlock
from opensled.protocol import agreed
from scheduler.estimates import DraftEstimate, Forecast
from verify_server.drafting.base import Proposal
from verify_server.kv.blocks import BlockTable
from verify_server.sequence import Sequence
from verify_server.trees import confidences, seen_of, tried

NO_DRAFT = DraftBlock(0)
# Drafts after which half of what their lengths show is forgotten, and tokens that are assumed beforehand. Chosen.
SHARE, PRIOR = 32.0, 8.0


@dataclass
class OwnDraft:
    """The draft that waits for the next step, and what is known of such drafts."""

    estimate: DraftEstimate
    needs_kv: bool = False  # the drafter computes in KV blocks that the session holds for it
    reads_blocks: bool = False  # the drafter reads in the KV blocks of the text
    block: DraftBlock = NO_DRAFT  # a chain; follows the whole text
    read: int = 0  # tokens of the text that the drafter has read
    reach: tuple[float, ...] = ()  # for each token of `block` the chance that it stands; () = unknown
    # Of the tokens that the drafter was asked for, those that it proposed
    share: FadingRatio = field(default_factory=lambda: FadingRatio(SHARE, PRIOR, PRIOR))

    def verified(
        self, most: int | None, device: DraftBlock, sequence: Sequence, max_tree: int, tree_reads: int
    ) -> DraftBlock:
        """What of it is verified: `most` tokens, None = all; beside a draft of the `device` only as one tree with it.

        `max_tree`, `tree_reads`: see `DraftLimits`.
        """
        length = len(self.block.tokens)
        own = self.block.first(min(length if most is None else most, sequence.useful))
        if not (device.tokens and own.tokens):
            return own
        if device.parents or 0 < tree_reads < 2 * len(sequence):
            return NO_DRAFT
        free = sequence.table.reach() - len(sequence) - len(device.tokens)  # no other session loses KV for it
        return own.first(max(0, min(max_tree - len(device.tokens), free)))

    def blocks(self, length: int, table: BlockTable) -> tuple[int, ...]:
        """The session's KV blocks for its drafter; where that computes in them, they cover `length` positions, as far
        as there is free memory."""
        if self.needs_kv:
            table.grow(min(table.reach(), length))
        return tuple(table.blocks) if self.needs_kv or self.reads_blocks else ()

    def take(self, proposal: Proposal, asked: int, length: int) -> None:
        """The drafter was asked for `asked` tokens after a text of `length`, and this came of it."""
        self.block, self.read = proposal.block, length - proposal.unread
        self.reach = self.estimate.reach(confidences(self.block))
        length = len(self.block.tokens)
        if not proposal.unread:
            self.share.add(length, asked)
        if length:
            self.estimate.arrived(0.0, length, 0.0)

    def judged(self, verified: DraftBlock, ids: tuple[int, ...]) -> int:
        """The text goes on with `ids` where a part of it, or nothing, was verified; how many tokens of that stand."""
        seen = seen_of(verified, self.block)
        path = agreed(seen, ids)
        self.estimate.judged(len(seen.tokens), len(path), tried(seen, path))
        return min(len(path), len(verified.tokens))

    def beside(self, verified: DraftBlock, more: int, device: DraftBlock, forecast: Forecast) -> None:
        """A step verified `verified` beside a chain of the device, of which `forecast` tells: `more` tokens of it stand
        than of that."""
        if verified.tokens and device.tokens:
            independent = tokens_beside(
                self.estimate.forecast[:2], forecast[:2], len(verified.tokens), len(device.tokens)
            )
            self.estimate.beside(max(0, more), float(independent))
