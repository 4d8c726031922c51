"""Policy `fixed`: blocks of one length, shorter where the server's hint or the room is smaller."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.lengths.base import UNADVISED, DraftLengthPolicy, LengthOptions
from opensled.drafting.status import DraftStatus


@dataclass(frozen=True)
class FixedLength(DraftLengthPolicy):
    """At most `length` tokens; a hint makes blocks shorter, and longer too if `may_grow`. `tree`: tokens of a tree."""

    length: int = UNADVISED
    may_grow: bool = False
    tree: int = 0

    @classmethod
    def of(cls, options: LengthOptions) -> FixedLength:
        return cls(options.length or UNADVISED, not options.length, options.tree)

    def most(self, limit: int, hint: int | None = None, ready: int = 0) -> int:
        if hint is None:
            return min(limit, self.length)
        return min(limit, hint if self.may_grow else min(hint, self.length))

    def nodes(self, limit: int, hint: int | None = None) -> int:
        return 0 if hint == 0 else min(limit, self.tree)

    @property
    def status(self) -> DraftStatus:
        return DraftStatus(self.length > 0, f"k = {self.length} at most, as told", self.length)
