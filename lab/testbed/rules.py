"""Which rule of the product says how long the draft blocks of a device of a fleet are."""

from edge_client.lengths.base import DraftLengthPolicy
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.hint import HintLength
from lab.testbed.fleet import STOPS, Group


def rule_of(group: Group) -> DraftLengthPolicy:
    """A rule of its own for one device."""
    assert group.stop in STOPS, "checked when the fleet is read"
    if group.stop == "hint":
        return HintLength(group.draft_length)
    if group.confidence:
        return ConfidenceLength(group.draft_length, confidence=group.confidence)
    return FixedLength(group.draft_length)
