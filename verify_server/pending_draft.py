"""A device's draft as the server keeps it until it is planned, and what a draft may be."""

from typing import NamedTuple

from opensled.messages import Draft, DraftBlock


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
