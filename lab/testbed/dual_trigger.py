"""The rule of baseline `pipesd`: a block ends after the token with which it is doubtful, as a whole or at its end.

This is the rule of PipeSD (arXiv 2605.13319): verify when the product of the confidences of a block is at most R1, or
the confidence of its newest token is at most R2. We know the rule, and that about 16 samples tune R1 and R2; the text
of the paper was not at hand. So these are our own: the product is that of one block, the doubtful token is sent with
it, a block has a longest length, and there are no trees. lab/testbed/tuning.py tunes both for a cell.

PipeSD also uploads a block in parts while it drafts. Here that would save 0.2 ms of a round of 120 ms at most by rule
`match`, where a token is 3 bytes, and 3 ms of LTE's 45 by rule `ratio`, where it is up to 460. But a session verifies
the draft that it has, and does not join parts: a block stays one message, and the upload is left out.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from edge_client.lengths.fixed import FixedLength
from opensled.core.messages import DraftToken

PRODUCT, NEWEST = 0.2, 0.4  # R1 and R2 of a fleet that is not tuned (chosen)


class _Confidences(threading.local):
    """The block that a thread is drafting."""

    product = 1.0  # of the confidences of its tokens
    newest = 1.0  # confidence of the last one


@dataclass(frozen=True)
class DualTrigger(FixedLength):
    """Blocks of at most `length` tokens, that end after the first token with which one of two triggers fires.

    `product`: R1, for the product of all confidences of the block; `newest`: R2, for the last one. Both are
    probabilities. 0 = that trigger fires for impossible tokens only.
    """

    needs_confidence = True
    product: float = PRODUCT
    newest: float = NEWEST
    _block: _Confidences = field(default_factory=_Confidences, init=False, repr=False, compare=False)

    def goes_on(self, index: int) -> bool:
        """Tokens that were drafted ahead end a block as well: the rule asks for a verdict, not for less drafting."""
        block = self._block
        return index == 0 or (block.product > self.product and block.newest > self.newest)

    def belongs(self, token: DraftToken, index: int) -> bool:
        """Every token: the one that fires a trigger is verified, too."""
        block = self._block
        block.product = token.confidence * (block.product if index else 1.0)
        block.newest = token.confidence
        return True

    @property
    def ending(self) -> str:
        return f", until their confidences multiply to {self.product:g} or one is {self.newest:g}"
