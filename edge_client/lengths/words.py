"""How a device drafts now, and why: one sentence."""

from edge_client.lengths.base import DraftLengthPolicy
from opensled.core.messages import Limits
from opensled.drafting.status import DraftStatus

NOTHING_TO_DRAFT_WITH = "this device has nothing to draft with"
NOT_WANTED = (
    "the server asks for no drafts now: it decides for all its users, or its operator has switched them off"
)


def draft_status(policy: DraftLengthPolicy, limits: Limits, hint: int | None) -> DraftStatus:
    """By a policy, the limits of a sequence, and the server's latest hint; None = it gave none."""
    if why := policy.rest or (NOT_WANTED if hint == 0 else ""):
        return resting(why)
    length, nodes = policy.most(limits.max_draft, hint), policy.nodes(limits.max_tree, hint)
    trees = f", trees of {nodes} where the drafter has them" if nodes else ""
    return DraftStatus(length > 0, f"k = {length}{_reason(length, hint)}{policy.ending}{trees}", length)


def _reason(length: int, hint: int | None) -> str:
    if hint is None:
        return ": the server has given no hint"
    return " by the server's hint" if length == hint else f" at most, the server's hint is {hint}"


def resting(why: str) -> DraftStatus:
    """Of a device that drafts nothing now."""
    return DraftStatus(False, f"not drafting: {why}")
