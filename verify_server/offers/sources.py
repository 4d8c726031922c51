"""All that drafts for one session. The rest of the session asks nobody else for drafts."""

from __future__ import annotations

from typing import NamedTuple

from opensled.messages import Draft, DraftBlock
from opensled.protocol import agreed
from scheduler.plan import Slice
from verify_server.offers.device import DeviceDrafts
from verify_server.offers.offer import NO_DRAFT, NO_PART, DraftLimits, Part, Room, Text
from verify_server.offers.server import ServerDrafts
from verify_server.sequence import Sequence
from verify_server.trees import together


class Parts(NamedTuple):
    """What of the drafts that waited a step verifies."""

    device: Part = NO_PART
    server: Part = NO_PART
    block: DraftBlock = NO_DRAFT  # both as one draft, a chain or a tree

    @property
    def draft(self) -> Draft | None:
        """The draft of the device that the step answers; None = there is none."""
        return self.device.offer.draft


NO_PARTS = Parts()


class DraftSources:
    """A device, and the drafter beside the target where there is one."""

    def __init__(
        self, limits: DraftLimits, device: DeviceDrafts | None = None, server: ServerDrafts | None = None
    ) -> None:
        """`limits`: of its drafts, whoever makes them; `server`: None = no drafter of the server drafts for it."""
        self.limits, self.device, self.server = limits, device or DeviceDrafts(), server

    def cut(self, piece: Slice, text: Text, now: float) -> Parts:
        """What of the waiting drafts a slice verifies. Changes nothing."""
        device = server = NO_PART
        if self.device.offer is not None:
            device = self.device.cut(self.limits, Room(text, piece.draft), now)
        if self.server is not None and self.server.offer is not None:
            server = self.server.cut(self.limits, Room(text, piece.own, device.verified), now)
        if device is server:
            return NO_PARTS
        return Parts(device, server, together(device.verified, server.verified))

    def spend(self, parts: Parts, advice: int | None, length: int, now: float) -> int | None:
        """A step takes these parts, behind a text of `length` tokens. Returns the hint that goes with its verdict, by
        the policy's `advice`."""
        hint = self.device.hint(advice, self.limits, length, now)
        self.device.spend(parts.device, length, now)
        if self.server is not None:
            self.server.spend(parts.server, length, now)
        return hint

    def ask(self, most: int, text: Sequence, drafted: int, now: float) -> tuple[int, tuple[int, ...]]:
        """Tokens that the server's drafter is to draft after a step that verifies `drafted` tokens, where the plan has
        `most`; and the KV blocks that it may need for that."""
        server = self.server
        wanted = server.ask(most, self.limits, len(text), now) if server is not None else 0
        if server is None or not wanted:
            return 0, ()
        return wanted, server.blocks(len(text) + drafted + wanted, text.memory)

    def postpone(self, parts: Parts, now: float) -> None:
        """The step verified nothing: its drafts wait again."""
        self.device.postpone(parts.device, now)
        if self.server is not None:
            self.server.postpone(parts.server, now)

    def judge(self, parts: Parts, ids: tuple[int, ...], known: int, committed: int) -> int:
        """See `DraftSource.judge`; `known`: of the device's draft. Returns how many tokens of the server's stand."""
        stands = 0
        if self.server is not None:
            stands = self.server.judge(parts.server, ids)
            if parts.server.verified.tokens:
                self._compare(self.server, parts, ids, stands)
        self.device.judge(parts.device, ids, known, committed)
        return stands

    def _compare(self, server: ServerDrafts, parts: Parts, ids: tuple[int, ...], stands: int) -> None:
        """A step verified a draft of the server, of which so much `stands`: alone, or beside one of the device."""
        device, verified = self.device, parts.device.verified
        server.compare(
            parts.server.verified, stands - len(agreed(verified, ids)), verified, device.estimate.forecast
        )
        if device.turn.hint == 0:
            device.estimate.follow(server.estimate)
