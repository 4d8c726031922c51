"""A draft that waits for the next step. `Offer.cut` is the one place where drafts are shortened."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from opensled.core.messages import Draft, DraftBlock
from verify_server.engine.trees import depth_first, no_deeper, no_wider

NO_DRAFT = DraftBlock(0)


class DraftLimits(NamedTuple):
    """What a draft of one session may be."""

    vocab_size: int  # ids that a draft may hold
    max_draft: int  # tokens of a chain
    max_tree: int = 0  # tokens of a tree; 0 = chains only
    tree_reads: int = 0  # positions that its branches may read together; 0 = any number (`EngineInfo`)
    min_draft: int = 0  # tokens of the shortest chain that its rule makes full use of; 0 = any


class Text(Protocol):
    """What a draft must know of the text that it follows; see `Sequence`."""

    def __len__(self) -> int: ...

    @property
    def useful(self) -> int: ...

    @property
    def free(self) -> int: ...


class Offer(NamedTuple):
    """A draft that waits, or one of which a step verifies a part."""

    block: DraftBlock  # what of it follows the text; of a tree the likeliest tokens come first
    since: float = 0.0  # when it came, in seconds
    # For each token of `block` the chance that it stands with all before it; () = its drafter does not say
    reach: tuple[float, ...] = ()
    draft: Draft | None = None  # as a device sent it; None = the server's own
    verified: DraftBlock = NO_DRAFT  # by a step: some of `block`

    def cut(self, limits: DraftLimits, budget: int, text: Text, beside: DraftBlock) -> DraftBlock:
        """What of it is verified behind a text: a chain, or a tree in the engine's order. `budget`: tokens at most;
        `beside`: the draft of another source that is verified, too."""
        block = self.block
        is_tree, length = bool(block.parents), len(text)
        most = min(budget, limits.max_tree if is_tree else limits.max_draft)
        if is_tree:
            # What a tree needs beyond the longest chain it takes of free memory: no other session loses KV for it.
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
