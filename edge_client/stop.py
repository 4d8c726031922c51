"""How long a draft block gets: the stop rule says after each token whether it still belongs to the block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from opensled.messages import DraftToken


@dataclass(frozen=True)
class StopRule:
    """At most `length` tokens; with `confidence` > 0 the block ends before the first token the draft model
    itself gives less (SLED's c_th, arXiv 2506.09397: a doubtful token costs the target a position in vain)."""

    length: int = 4
    confidence: float = 0.0

    @property
    def needs_confidence(self) -> bool:
        """Whether draft tokens must say theirs; a sampler that need not is spared a pass over the vocabulary."""
        return self.confidence > 0

    def take(
        self, proposals: Iterator[DraftToken], limit: int, interrupted: Callable[[], bool]
    ) -> tuple[DraftToken, ...]:
        """Pull proposals into a block, no longer than `limit`, until the rule or an interrupt ends it."""
        block: list[DraftToken] = []
        length = min(self.length, limit)
        while len(block) < length and not interrupted():
            token = next(proposals, None)
            if token is None or token.confidence < self.confidence:
                break
            block.append(token)
        return tuple(block)
