"""How long a draft block gets: a rule says at most how many tokens, and after each whether it still belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from edge_client.lengths.status import DraftStatus
from opensled.messages import DraftBlock, DraftToken

UNADVISED = 4  # tokens of a block about which neither the server nor the device's owner said anything


class DraftLengthPolicy(Protocol):
    """Decides about blocks, and hears how they fare.

    One rule serves all sequences of a device: it is asked and told from the event loop and from drafters' threads.
    """

    @property
    def needs_confidence(self) -> bool:
        """Whether draft tokens must say theirs; a sampler that need not is spared a pass over the vocabulary."""

    @property
    def needs_spread(self) -> bool:
        """Whether draft tokens must say their entropy and margin as well."""

    def most(self, limit: int, hint: int | None = None, ready: int = 0) -> int:
        """Tokens of a block at most, where `limit` have room, the server hints at `hint` (None = at nothing), and
        `ready` are drafted already. Asked once for each block. 0: the server is to decode by itself for now."""

    def ahead(self, limit: int, hint: int | None = None) -> int:
        """Tokens of the next block that may be drafted while the present one travels, where `limit` have room.
        0: nothing is drafted ahead; the guess of the bonus token alone would be of no use."""

    def nodes(self, limit: int, hint: int | None = None) -> int:
        """Tokens of a tree at most, where `limit` have room; 0 = a chain is worth more."""

    def goes_on(self, index: int) -> bool:
        """Whether number `index` of a block is worth drafting, now that those before it belong to the block."""

    def belongs(self, token: DraftToken, index: int) -> bool:
        """Whether a proposed token is still worth its verification as number `index` of its block."""

    def drafted(self, tokens: int, seconds: float) -> None:
        """The draft model took so long for so many tokens, one after the other."""

    def answered(self, block: DraftBlock, accepted: int, seconds: float) -> None:
        """The verdict on a block came `seconds` after it was sent; so many tokens of it, in a row, stand."""

    def streamed(self, tokens: int, seconds: float) -> None:
        """The server decoded so many tokens by itself, `seconds` after those before."""

    @property
    def status(self) -> DraftStatus:
        """What it has settled on, and why."""


@dataclass(frozen=True)
class FixedLength:
    """At most `length` tokens, fewer where the server hints at fewer; more where it hints at more if `may_grow`.

    With `confidence` > 0 the block ends before the first token the draft model itself gives less (SLED's c_th, arXiv
    2506.09397: a doubtful token costs the target a position in vain). `tree`: tokens of a tree, where a drafter has
    one and the server takes it; 0 = chains. See `DraftLengthPolicy` for the methods.
    """

    length: int = UNADVISED
    confidence: float = 0.0
    may_grow: bool = False
    tree: int = 0

    @property
    def needs_confidence(self) -> bool:
        return self.confidence > 0

    @property
    def needs_spread(self) -> bool:
        return False

    def most(self, limit: int, hint: int | None = None, ready: int = 0) -> int:
        if hint is None:
            return min(limit, self.length)
        return min(limit, hint if self.may_grow else min(hint, self.length))

    ahead = most

    def nodes(self, limit: int, hint: int | None = None) -> int:
        return 0 if hint == 0 else min(limit, self.tree)

    def goes_on(self, index: int) -> bool:
        return True

    def belongs(self, token: DraftToken, index: int) -> bool:
        return token.confidence >= self.confidence

    def drafted(self, tokens: int, seconds: float) -> None:
        """It learns nothing."""

    def answered(self, block: DraftBlock, accepted: int, seconds: float) -> None:
        """It learns nothing."""

    def streamed(self, tokens: int, seconds: float) -> None:
        """It learns nothing."""

    @property
    def status(self) -> DraftStatus:
        until = f", until a token below {self.confidence:g}" if self.confidence else ""
        return DraftStatus(self.length > 0, f"k = {self.length} at most, as told{until}", self.length)


def pulled(
    rule: DraftLengthPolicy, proposals: Iterator[DraftToken], length: int, interrupted: Callable[[], bool]
) -> Iterator[DraftToken]:
    """The tokens of a block, until it has `length`, the rule ends it, or something interrupts."""
    for index in range(length):
        stops = interrupted() or not rule.goes_on(index)
        token = None if stops else next(proposals, None)
        if token is None or not rule.belongs(token, index):
            return
        yield token
