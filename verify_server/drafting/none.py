"""No drafter beside the target: `opensled serve --server-drafter none`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opensled.core.messages import DraftBlock
from verify_server.round.drafter import Ask, Proposal, ServerDrafter


class NoDrafter(ServerDrafter):
    """Proposes nothing."""

    def __init__(self, config: Any = None, target: Any = None) -> None:
        """Needs neither."""

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [Proposal(DraftBlock(ask.length)) for ask in asks]
