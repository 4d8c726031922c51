"""All draft sources of one session: the rest of the session gets drafts only from here."""

from __future__ import annotations

from typing import NamedTuple

from opensled.core.messages import DraftBlock
from opensled.core.protocol import follow_path
from opensled.core.trees import together
from scheduler.plan import Slice
from verify_server.round.device_source import DeviceDrafts
from verify_server.round.offer import NO_DRAFT, NOTHING, DraftLimits, Offer
from verify_server.round.sequence import Sequence
from verify_server.round.server_source import ServerDrafts


class StepDrafts(NamedTuple):
    """The drafts that a step takes, with the parts that it verifies."""

    device: Offer = NOTHING
    server: Offer = NOTHING
    block: DraftBlock = NO_DRAFT  # the verified parts of both as one draft, a chain or a tree


NO_DRAFTS = StepDrafts()


class DraftSources:
    """A device, and the server's drafter if there is one."""

    def __init__(
        self, limits: DraftLimits, device: DeviceDrafts | None = None, server: ServerDrafts | None = None
    ) -> None:
        """`limits`: limits of drafts from all sources; `server`: None = there are no server drafts."""
        self.limits, self.device, self.server = limits, device or DeviceDrafts(), server

    def cut(self, piece: Slice, text: Sequence, now: float) -> StepDrafts:
        """The waiting drafts, with the parts that a slice verifies. Changes nothing."""
        device = server = NOTHING
        if self.device.offer is not None:
            device = self.device.cut(self.limits, text, piece.draft, now)
        if self.server is not None and self.server.offer is not None:
            server = self.server.cut(self.limits, text, piece.own, now, device.verified)
        if device is server:
            return NO_DRAFTS
        return StepDrafts(device, server, together(device.verified, server.verified))

    def spend(self, drafts: StepDrafts, piece: Slice, length: int, now: float) -> int | None:
        """A step takes these drafts for `piece`, after a text of `length` tokens. Returns the hint for its verdict."""
        hint = self.device.hint(piece, self.limits, length, now)
        self.device.spend(drafts.device, length, now)
        if self.server is not None:
            self.server.spend(drafts.server, length, now)
        return hint

    def ask(self, most: int, text: Sequence, now: float) -> int:
        """The number of tokens that the server's drafter drafts after a step, with the plan's maximum `most`."""
        return self.server.ask(most, self.limits, text, now) if self.server is not None else 0

    def judge(self, drafts: StepDrafts, ids: tuple[int, ...], known: int, committed: int) -> int:
        """See `DraftSource.judge`; `known` is about the device's draft. Returns the number of accepted tokens of the
        server draft."""
        stands = 0
        if self.server is not None:
            stands = self.server.judge(drafts.server, ids)
            if drafts.server.verified.tokens:
                self._compare(self.server, drafts, ids, stands)
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
