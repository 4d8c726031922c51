"""Who says how long the draft blocks of a device of a fleet are: the product's own rules, on the clock of the run."""

import time
from collections.abc import Callable

from edge_client.lengths.adaptive import Adaptive
from edge_client.lengths.base import DraftLengthPolicy
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from hw_profiles.sysfs import BoardState
from opensled.messages import DraftBlock
from opensled_testbed.dual_trigger import DualTrigger
from opensled_testbed.fleet import STOPS, Group


def rule_of(group: Group, clock: Callable[[], float]) -> DraftLengthPolicy:
    """A rule of its own for one device; `clock`: seconds of the run."""
    assert group.stop in STOPS, "checked when the fleet is read"
    if group.stop == "adaptive":
        return Adaptive(group.draft_length, group.look_ahead, clock=clock, board=BoardState)
    if group.stop == "dual-trigger":
        return DualTrigger(group.draft_length, product=group.product, newest=group.confidence)
    if group.confidence:
        return ConfidenceLength(group.draft_length, confidence=group.confidence)
    return FixedLength(group.draft_length)


def stretched_rule_of(group: Group, dilation: float) -> DraftLengthPolicy:
    """The same for a run that takes `dilation` real seconds for each emulated one."""
    return Stretched(group, dilation) if group.stop == "adaptive" else rule_of(group, time.monotonic)


class Stretched(Adaptive):
    """The adaptive rule, which hears emulated seconds where it is told real ones."""

    def __init__(self, group: Group, dilation: float) -> None:
        super().__init__(
            group.draft_length,
            group.look_ahead,
            clock=lambda: time.monotonic() / dilation,
            board=BoardState,
        )
        self._dilation = dilation

    def opened(self, seconds: float) -> None:
        super().opened(seconds / self._dilation)

    def drafted(self, tokens: int, seconds: float) -> None:
        super().drafted(tokens, seconds / self._dilation)

    def answered(self, block: DraftBlock, accepted: int, seconds: float, awaited: bool = True) -> None:
        super().answered(block, accepted, seconds / self._dilation, awaited)

    def streamed(self, tokens: int, seconds: float) -> None:
        super().streamed(tokens, seconds / self._dilation)
