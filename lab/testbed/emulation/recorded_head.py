"""A draft head beside the target that proposes what was recorded, in the time of its passes, mostly one.

What it needs to know of a text the target's own steps have written: it reads nothing first, and has no KV of its own.
Recordings are of draft models; a head is as often right here as the one that was recorded.
"""

from collections.abc import Callable, Iterable, Sequence

from lab.testbed.emulation.draft_head import HeadCost
from lab.testbed.emulation.recorded_texts import RecordedTexts
from lab.testbed.emulation.step_law import StepLaw, StepPiece
from lab.testbed.traces import ItemTrace
from opensled.core.messages import DraftBlock, DraftToken
from verify_server.round.drafter import Ask, Proposal, ServerDrafter


class RecordedHead(ServerDrafter):
    """`ServerDrafter` over the texts of `items`, at the pace of `law`."""

    pass_share, max_passes = 0.1, 1

    def __init__(self, items: Iterable[ItemTrace], law: StepLaw, spend: Callable[[float], None]) -> None:
        """`law`: of a server with a head; `spend`: lets seconds of it pass."""
        assert isinstance(law.draft, HeadCost), "a head drafts by the law of a head"
        self._law, self._spend, self._length = law, spend, law.draft.head.length
        self._passes = law.draft.passes
        self._recorded = RecordedTexts(items)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """See `ServerDrafter`; raises AssertionError for a text that was not recorded."""
        passes = self._passes(max(min(ask.most, self._length) for ask in asks))
        self._spend(passes * self._law.pass_s([StepPiece(1, ask.length - 1) for ask in asks]))
        return [self._proposal(ask) for ask in asks]

    def _proposal(self, ask: Ask) -> Proposal:
        trace = self._recorded.of(ask)
        place = ask.length - len(trace.prompt_ids)
        found = [trace.proposed(place, index) for index in range(min(ask.most, self._length))]
        # Where a recorded draft ends, all that would follow is None.
        return Proposal(DraftBlock(ask.length, tuple([DraftToken(each[0]) for each in found if each])))
