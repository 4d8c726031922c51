"""The simulated drafter beside the target: the product's stage over recorded drafts, in the time its passes take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hw_profiles.drafting_cost import DraftingCostModel
from hw_profiles.step_cost import DraftingCost
from opensled_testbed.emulation.recorded_drafter import drafter_of
from opensled_testbed.emulation.step_law import StepLaw
from opensled_testbed.traces import ItemTrace
from scheduler.estimates import DeviceBook
from verify_server.drafting.stage import DraftStage, OwnDrafts, asked_of
from verify_server.own_draft import OwnDraft
from verify_server.session import StepItem

VOCABULARY = 1 << 31  # ids of recorded tokens are not checked again


class SimulatedDrafter:
    """Drafts for all sessions of one server, and learns what that costs as a server's loop does."""

    def __init__(self, law: StepLaw, items: Iterable[ItemTrace]) -> None:
        """`law`: of a server with a draft; `items`: all that its sessions may write."""
        assert law.drafting is not None, "a drafter needs a draft model, or a head"
        self._spent_s = 0.0
        drafter = drafter_of(items, law, self._spend)
        self._stage = DraftStage(drafter, VOCABULARY, lambda: self._spent_s)
        self._costs = DraftingCostModel(law.drafting)
        self._book = DeviceBook()

    def _spend(self, seconds: float) -> None:
        self._spent_s += seconds

    @property
    def cost(self) -> DraftingCost:
        """What a policy knows of it by now."""
        return self._costs.cost

    def own_draft(self) -> OwnDraft:
        """Of a new session."""
        return self._stage.own_draft(self._book.of("", ""))

    def after(self, work: Sequence[StepItem]) -> OwnDrafts:
        """What it drafts after a step that is committed."""
        asks = [ask for ask in map(asked_of, work) if ask is not None]
        drafted = self._stage.run(asks)
        assert len(drafted.proposals) == len(asks), "the drafter failed, its log says why"
        if drafted.proposals:
            drafted.teach(self._costs)
        return drafted

    def forget(self, session: int) -> None:
        """The session is over."""
        self._stage.forget(session)
