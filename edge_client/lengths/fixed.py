"""Policy `fixed`: blocks of one length, shorter where the server's hint or the room is smaller."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.lengths.base import UNADVISED, DraftLengthPolicy, LengthOptions


@dataclass(frozen=True)
class FixedLength(DraftLengthPolicy):
    """Blocks of `length` tokens; `tree`: tokens of a tree."""

    length: int = UNADVISED
    tree: int = 0

    @classmethod
    def of(cls, options: LengthOptions) -> FixedLength:
        return cls(options.length or UNADVISED, options.tree)

    def most(self, limit: int, hint: int | None = None) -> int:
        return min(limit, self.length, self.length if hint is None else hint)
