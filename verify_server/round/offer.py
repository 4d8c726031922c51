"""A draft that waits for the next step. `Offer.cut` is the only place that shortens drafts."""

from __future__ import annotations

from typing import NamedTuple

from opensled.core.messages import Draft, DraftBlock
from opensled.core.trees import depth_first, no_deeper, no_wider
from verify_server.round.sequence import Sequence

NO_DRAFT = DraftBlock(0)


class DraftLimits(NamedTuple):
    """Limits of the drafts of one session."""

    vocab_size: int  # ids in a draft must be lower
    max_draft: int  # maximum length of a chain, in tokens
    max_tree: int = 0  # maximum size of a tree, in tokens; 0 = chains only
    tree_reads: int = 0  # maximum number of positions that its branches read together; 0 = any (`EngineInfo`)
    min_draft: int = 0  # minimum length of a chain for the full effect of its rule, in tokens; 0 = any


class Offer(NamedTuple):
    """A draft that waits, or that a step verifies in part."""

    block: DraftBlock  # the part that follows the text; in a tree the likeliest tokens come first
    since: float = 0.0  # when it arrived, in seconds
    # For each token of `block`, the chance that it and all before it are accepted; () = the drafter gives none
    reach: tuple[float, ...] = ()
    draft: Draft | None = None  # the draft as a device sent it; None = it is a server draft
    verified: DraftBlock = NO_DRAFT  # the part of `block` that a step verifies

    def cut(self, limits: DraftLimits, budget: int, text: Sequence, beside: DraftBlock) -> DraftBlock:
        """The part to verify after a text: a chain, or a tree in the engine's order. `budget`: maximum tokens;
        `beside`: the verified draft of the other source."""
        block = self.block
        is_tree, length = bool(block.parents), len(text)
        most = min(budget, limits.max_tree if is_tree else limits.max_draft)
        if is_tree:
            # Beyond the longest chain, a tree takes free memory only: no other session loses KV for it.
            most = min(most, max(limits.max_draft, text.free))
        if beside.tokens:  # both become one tree
            if beside.parents or 0 < limits.tree_reads < 2 * length:
                return NO_DRAFT
            most = min(most, min(limits.max_tree, text.free) - len(beside.tokens))
        if not is_tree:
            return block.first(max(0, min(most, text.useful)))
        cut = no_deeper(block, text.useful).first(max(0, most))
        if limits.tree_reads:
            cut = no_wider(cut, max(1, limits.tree_reads // length))
        return depth_first(cut)


NOTHING = Offer(NO_DRAFT)
