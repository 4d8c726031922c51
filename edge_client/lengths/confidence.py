"""Policy `confidence`: a block ends before the first doubtful token (SLED's c_th, arXiv 2506.09397)."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.lengths.base import UNADVISED, LengthOptions
from edge_client.lengths.fixed import FixedLength
from opensled.core.messages import DraftToken


@dataclass(frozen=True)
class ConfidenceLength(FixedLength):
    """Blocks as `FixedLength`, ended by the first token below `confidence` (a probability)."""

    needs_confidence = True
    confidence: float = LengthOptions.confidence

    @classmethod
    def of(cls, options: LengthOptions) -> ConfidenceLength:
        return cls(options.length or UNADVISED, options.tree, options.confidence)

    def belongs(self, token: DraftToken, index: int) -> bool:
        return token.confidence >= self.confidence

    @property
    def ending(self) -> str:
        return f", fewer where it is less than {self.confidence:.0%} sure"
