"""A draft model beside the target that proposes what was recorded; its passes only take time.

    opensled serve --engine lab.testbed.emulation.emulated_accelerator:load
                   --server-drafter lab.testbed.emulation.recorded_drafter:load

What it reads, and how many passes that takes, follows `verify_server.drafting.model`: it reads what is new of each
text, of long ones a piece in each step, and drafts one token of every session in each pass. One block of its memory has
room for any text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep

from lab.testbed.emulation.draft_head import HeadCost
from lab.testbed.emulation.emulated_accelerator import settings
from lab.testbed.emulation.recorded_head import RecordedHead
from lab.testbed.emulation.recorded_texts import RecordedTexts
from lab.testbed.emulation.step_law import StepLaw, StepPiece
from lab.testbed.traces import ItemTrace, read_traces
from opensled.core.messages import DraftBlock, DraftToken
from verify_server.drafting.guests import GuestPool
from verify_server.drafting.model import NEAR, READ, ServerModel
from verify_server.kv.blocks import BlockPool
from verify_server.kv.memory import ENDLESS
from verify_server.options.serve_config import ServeConfig
from verify_server.round.drafter import Ask, DrafterMemory, Proposal, ServerDrafter
from verify_server.round.loaded_model import ServedModel


def load(config: ServeConfig, target: ServedModel) -> ServerDrafter:
    """The drafter of the server that the environment names; raises UsageError where it is not told its recording."""
    server, dilation, drafts = settings()
    items = read_traces(Path(drafts)).items
    return drafter_of(items, StepLaw.of(server), lambda seconds: sleep(dilation * seconds))


def drafter_of(
    items: Iterable[ItemTrace], law: StepLaw, spend: Callable[[float], None]
) -> RecordedDrafter | RecordedHead:
    """A model, or a head, as `law` says."""
    kind = RecordedHead if isinstance(law.draft, HeadCost) else RecordedDrafter
    return kind(items, law, spend)


@dataclass
class _Draft:
    """One session's draft as it grows."""

    ask: Ask
    trace: ItemTrace
    read: int  # tokens of the text that are read now
    ids: list[int] = field(default_factory=list)

    @property
    def stop(self) -> int:
        """Tokens of the text that are read then."""
        return self.ask.computed + self.read

    def grow(self) -> bool:
        """One more token, where it is asked for and recorded; whether a pass for the next one is due."""
        found = self.trace.proposed(self.ask.length - len(self.trace.prompt_ids), len(self.ids))
        if found is None:
            return False
        self.ids.append(found[0])
        return len(self.ids) < self.ask.most

    def end(self) -> Proposal:
        """What came of it."""
        length = self.ask.length
        return Proposal(DraftBlock(length, tuple(map(DraftToken, self.ids))), self.read, length - self.stop)


class RecordedDrafter(ServerDrafter):
    """`ServerDrafter` over the texts of `items`, at the pace of `law`."""

    def __init__(self, items: Iterable[ItemTrace], law: StepLaw, spend: Callable[[float], None]) -> None:
        """`spend`: lets seconds of the law pass."""
        self._law, self._spend = law, spend
        self._recorded = RecordedTexts(items)

    pass_share, read_share = ServerModel.pass_share, ServerModel.read_share

    def lodge(self, host: BlockPool) -> None:
        """See `ServerDrafter`."""
        self._guests = GuestPool(host, ENDLESS)

    def place(self, tenant: str) -> DrafterMemory:
        """See `ServerDrafter`."""
        return self._guests.place(tenant)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """See `ServerDrafter`; raises AssertionError for a text that was not recorded."""
        drafts = self._begun(asks)
        growing = [draft for draft in drafts if draft.stop == draft.ask.length]
        seconds = self._pass_s([StepPiece(each.read, each.stop) for each in drafts if each.read])
        while growing := [draft for draft in growing if draft.grow()]:
            seconds += self._pass_s([StepPiece(1, each.ask.length + len(each.ids)) for each in growing])
        self._spend(seconds)
        return [draft.end() for draft in drafts]

    def _pass_s(self, pieces: Sequence[StepPiece]) -> float:
        return self._law.pass_s(pieces) if pieces else 0.0

    def _begun(self, asks: Sequence[Ask]) -> list[_Draft]:
        """What is read of each text in the first pass."""
        left, drafts = READ, []
        for ask in asks:
            unread = ask.length - ask.computed
            read = unread if unread <= NEAR else min(unread, left)
            left -= read if unread > NEAR else 0
            drafts.append(_Draft(ask, self._recorded.of(ask), read))
        return drafts
