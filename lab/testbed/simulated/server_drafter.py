"""The simulated drafter beside the target: the product's stage over recorded drafts, in the time its passes take."""

from collections.abc import Iterable

from lab.testbed.emulation.recorded_drafter import drafter_of
from lab.testbed.emulation.step_law import StepLaw
from lab.testbed.traces import ItemTrace
from verify_server.round.draft_stage import DraftStage

VOCABULARY = 1 << 31  # ids of recorded tokens are not checked again


class SimulatedDrafter:
    """Drafts for all sessions of one server."""

    def __init__(self, law: StepLaw, items: Iterable[ItemTrace]) -> None:
        """`law`: of a server with a draft; `items`: all that its sessions may write."""
        assert law.drafting is not None, "a drafter needs a draft model, or a head"
        self._spent_s = 0.0
        drafter = drafter_of(items, law, self._spend)
        self.stage = DraftStage({"recorded": drafter}, VOCABULARY, lambda: self._spent_s)

    def _spend(self, seconds: float) -> None:
        self._spent_s += seconds
