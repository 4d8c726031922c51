"""A device's draft as the server keeps it until it is planned, what a draft may be, and what of it is verified."""

from typing import NamedTuple

from opensled.messages import Draft, DraftBlock
from verify_server.draft_budget import DraftBudget
from verify_server.sequence import Sequence
from verify_server.trees import depth_first, no_deeper, no_wider


class PendingDraft(NamedTuple):
    """A draft not yet planned: as it arrived, what of it still drafts beyond the truth, and when it came."""

    draft: Draft
    rest: DraftBlock
    since: float
    # For each token of `rest` the chance that it stands with all before it; () = the device does not say
    reach: tuple[float, ...] = ()


class DraftLimits(NamedTuple):
    """What a draft of one session may be."""

    vocab_size: int  # ids that a draft may hold
    max_draft: int  # tokens of a chain
    max_tree: int = 0  # tokens of a tree; 0 = chains only
    tree_reads: int = 0  # positions that its branches may read together; 0 = any number (`EngineInfo`)
    least_draft: int = 0  # tokens of the shortest chain that its rule makes full use of; 0 = any


def verified(
    rest: DraftBlock,
    most: int | None,
    limits: DraftLimits,
    budget: DraftBudget,
    sequence: Sequence,
    now: float,
) -> DraftBlock:
    """What of a draft that follows the text is verified: a chain, or a tree in the engine's order.

    `most`: tokens that the plan has for it, None = all. `now`: seconds.
    """
    useful, length = sequence.useful, len(sequence)
    most = len(rest.tokens) if most is None else most
    if not rest.parents:
        return rest.first(min(useful, budget.longest(limits.max_draft, length, now), most))
    allowed = budget.longest(limits.max_tree, length, now)
    # What a tree needs beyond the longest chain it takes of free memory: no other session loses KV for it.
    room = max(limits.max_draft, sequence.table.reach() - length)
    tree = no_deeper(rest, useful).first(min(allowed, room, most))
    if limits.tree_reads:
        tree = no_wider(tree, max(1, limits.tree_reads // length))
    return depth_first(tree)
