"""One sequence's KV in host memory, or under way there or back; host_tier.py moves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class Stage(Enum):
    """While a copy travels, nobody takes the blocks that it reads or writes, on either side."""

    LEAVING = "leaving"  # in the engine's blocks, and being copied
    AWAY = "away"  # in host memory alone
    COMING = "coming"  # in host memory, and being copied


class HostBlocks(Protocol):
    """What of the host's pool a swap needs (`BlockPool`)."""

    def give_back(self, blocks: list[int], tenant: str) -> None: ...


@dataclass(eq=False)
class Swap:
    """The host blocks that hold what the sequence's own blocks did, in their order."""

    pool: HostBlocks
    tenant: str
    host: list[int]
    stage: Stage
    keep: int  # blocks that are wanted when the copy is there: a rollback on its way lowers it
    given_up: bool = False  # the sequence is over, or was preempted, while the copy travelled:
    blocks: list[int] = field(default_factory=list)  # what it held of the engine's blocks then

    def truncate(self, keep: int) -> None:
        """Only the first `keep` blocks are needed."""
        self.keep = min(self.keep, keep)
        if self.stage is Stage.AWAY:
            self.trim()

    def trim(self) -> None:
        """Give back what is not needed; not while a copy travels."""
        if self.keep < len(self.host):
            self.pool.give_back(self.host[self.keep :], self.tenant)
            del self.host[self.keep :]

    def give_up(self, blocks: list[int]) -> None:
        """The sequence needs none of it any more; while a copy travels, its `blocks` stay taken until that ends."""
        self.keep = 0
        if self.stage is Stage.AWAY:
            self.trim()
        else:
            self.given_up, self.blocks = True, blocks
