"""All draft sources of one session: the rest of the session gets drafts only from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opensled.core.messages import DraftBlock
from opensled.core.protocol import follow_path
from opensled.core.trees import together
from scheduler.plan import Slice
from verify_server.round.device_source import DeviceDrafts
from verify_server.round.offer import NO_DRAFT, NOTHING, DraftLimits, Offer
from verify_server.round.sequence import Sequence as Text
from verify_server.round.server_source import ServerDrafts


class StepDrafts(NamedTuple):
    """The drafts that a step takes, with the parts that it verifies."""

    device: Offer = NOTHING
    server: Offer = NOTHING
    block: DraftBlock = NO_DRAFT  # the verified parts of both as one draft, a chain or a tree
    drafter: int = 0  # of the server, which made the server draft


NO_DRAFTS = StepDrafts()


class DraftSources:
    """A device, and the server's drafters."""

    def __init__(
        self, limits: DraftLimits, device: DeviceDrafts | None = None, servers: Sequence[ServerDrafts] = ()
    ) -> None:
        """`limits`: limits of drafts from all sources; `servers`: of each drafter, one of which drafts for a step."""
        self.limits, self.device, self.servers = limits, device or DeviceDrafts(), tuple(servers)

    def cut(self, piece: Slice, text: Text, now: float) -> StepDrafts:
        """The waiting drafts, with the parts that a slice verifies. Changes nothing."""
        device, server, drafter = NOTHING, NOTHING, 0
        if self.device.offer is not None:
            device = self.device.cut(self.limits, text, piece.draft, now)
        for number, source in enumerate(self.servers):
            if source.offer is not None:
                server, drafter = source.cut(self.limits, text, piece.own, now, device.verified), number
        if device is server:
            return NO_DRAFTS
        return StepDrafts(device, server, together(device.verified, server.verified), drafter)

    def spend(self, drafts: StepDrafts, piece: Slice, length: int, now: float) -> int | None:
        """A step takes these drafts for `piece`, after a text of `length` tokens. Returns the hint for its verdict."""
        hint = self.device.hint(piece, self.limits, length, now)
        self.device.spend(drafts.device, length, now)
        if self.servers:
            self.servers[drafts.drafter].spend(drafts.server, length, now)
        return hint

    def ask(self, most: int, drafter: int, text: Text, now: float) -> int:
        """The number of tokens that a drafter of the server drafts after a step, with the plan's maximum `most`; the
        others rest."""
        asked = 0
        for number, source in enumerate(self.servers):
            asked += source.ask(most if number == drafter else 0, self.limits, text, now)
        return asked

    def judge(self, drafts: StepDrafts, ids: tuple[int, ...], known: int, committed: int) -> int:
        """See `DraftSource.judge`; `known` is about the device's draft. Returns the number of accepted tokens of the
        server draft."""
        stands = 0
        if self.servers:
            server = self.servers[drafts.drafter]
            stands = server.judge(drafts.server, ids)
            if drafts.server.verified.tokens:
                self._compare(server, drafts, ids, stands)
        self.device.judge(drafts.device, ids, known, committed)
        return stands

    def _compare(self, server: ServerDrafts, drafts: StepDrafts, ids: tuple[int, ...], stands: int) -> None:
        """A step verified a server draft, alone or together with a device draft, and accepted `stands` tokens of it."""
        device, verified = self.device, drafts.device.verified
        server.compare(
            drafts.server.verified,
            stands - len(follow_path(verified, ids)),
            verified,
            device.estimate.forecast,
        )
        if device.turn.hint == 0:
            device.estimate.follow(server.estimate)
