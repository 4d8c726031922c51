"""How long a draft block gets: the stop rule says after each token whether it still belongs to the block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from opensled.messages import DraftToken

UNADVISED = 4  # tokens of a block about which neither the server nor the device's owner said anything


@dataclass(frozen=True)
class StopRule:
    """At most `length` tokens, fewer where the server hints at fewer; more where it hints at more if `may_grow`.

    With `confidence` > 0 the block ends before the first token the draft model itself gives less (SLED's c_th, arXiv
    2506.09397: a doubtful token costs the target a position in vain).
    """

    length: int = UNADVISED
    confidence: float = 0.0
    may_grow: bool = False

    @property
    def needs_confidence(self) -> bool:
        """Whether draft tokens must say theirs; a sampler that need not is spared a pass over the vocabulary."""
        return self.confidence > 0

    def most(self, limit: int, hint: int | None = None) -> int:
        """Longest block where `limit` tokens have room, and the server hints at `hint`, None = at nothing."""
        if hint is None:
            return min(limit, self.length)
        return min(limit, hint if self.may_grow else min(hint, self.length))

    def take(
        self,
        proposals: Iterator[DraftToken],
        limit: int,
        interrupted: Callable[[], bool],
        hint: int | None = None,
    ) -> tuple[DraftToken, ...]:
        """Pull proposals into a block, no longer than `most`, until the rule or an interrupt ends it."""
        block: list[DraftToken] = []
        length = self.most(limit, hint)
        while len(block) < length and not interrupted():
            token = next(proposals, None)
            if token is None or token.confidence < self.confidence:
                break
            block.append(token)
        return tuple(block)
