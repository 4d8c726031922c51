"""Policy `hint`, the default: the server says how long blocks are, for it knows what all of its users cost and gain."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.lengths.base import UNADVISED, DraftLengthPolicy, LengthOptions


@dataclass(frozen=True)
class HintLength(DraftLengthPolicy):
    """As many tokens as the latest hint says, UNADVISED before the first one.

    `length`: most tokens by the device's owner, 0 = not said; `tree`: tokens of a tree.
    """

    needs_confidence = True  # not for itself: a busy server verifies the likeliest tokens of all devices
    length: int = 0
    tree: int = 0

    @classmethod
    def of(cls, options: LengthOptions) -> HintLength:
        return cls(options.length, options.tree)

    def most(self, limit: int, hint: int | None = None) -> int:
        wanted = UNADVISED if hint is None else hint
        return min(limit, wanted, self.length or wanted)
