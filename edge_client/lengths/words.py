"""How a device drafts now, and why: one sentence."""

from edge_client.lengths.base import DraftLengthPolicy
from opensled.core.messages import Limits
from opensled.core.turns import Turn
from opensled.drafting.status import DraftStatus, why_at_rest

NOTHING_TO_DRAFT_WITH = "this device has nothing to draft with"
TAKES_NONE = "the server takes no drafts"


def draft_status(policy: DraftLengthPolicy, limits: Limits, turn: Turn | None) -> DraftStatus:
    """By a policy, the limits of a sequence, and its turn; None = there was no sequence yet."""
    hint = turn.hint if turn else None
    at_rest = why_at_rest(turn.why) if turn and hint == 0 else ""
    if why := policy.rest or ("" if limits.max_draft else TAKES_NONE) or at_rest:
        return resting(why)
    length, nodes = policy.most(limits.max_draft, hint), policy.nodes(limits.max_tree, hint)
    trees = f", trees of {nodes} where the drafter has them" if nodes else ""
    words = f"drafts of {length} token{'s' * (length != 1)}{policy.ending}{trees}; {_reason(length, turn)}"
    return DraftStatus(length > 0, words, length)


def _reason(length: int, turn: Turn | None) -> str:
    if turn is None:
        return "not tried yet"
    if turn.hint is None:
        return "the server leaves their length to this device"
    return "the server asks for them" if length == turn.hint else f"the server would take {turn.hint}"


def resting(why: str) -> DraftStatus:
    """Of a device that drafts nothing now."""
    return DraftStatus(False, f"not drafting: {why}")
