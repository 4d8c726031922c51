"""A real drafter at the pace of another device: every forward pass lasts as long as the device's profile says.

The proposals, the cache and the thread are the product's. A pass cannot be interrupted, as on the device; an interrupt
is heard between two of them.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np

from edge_client.drafters.base import Drafter, DrafterFactory, ModelDrafter
from hw_profiles.profiles import DraftSpeed
from lab.testbed.emulation.draft_pace import forward_s
from opensled.core.messages import DraftToken, ModelInfo
from opensled.text.tokenizer import TargetTokenizer


class PacedFactory(DrafterFactory):
    """`DrafterFactory` around another one; drafters without a model (lookup, none) stay as fast as they are."""

    def __init__(self, factory: DrafterFactory, speed: DraftSpeed, dilation: float = 1.0) -> None:
        self._factory, self._speed, self._dilation = factory, speed, dilation
        self.name = factory.name

    def fit(self, target: ModelInfo, tokenizer: TargetTokenizer | None = None) -> None:
        self._factory.fit(target, tokenizer)

    def create(self) -> Drafter:
        drafter = self._factory.create()
        if not isinstance(drafter, ModelDrafter):
            return drafter
        return PacedDrafter(drafter, self._speed, self._dilation)


class PacedDrafter(ModelDrafter):
    """Computes with `inner`, and takes dilation x the profile's time for each pass."""

    def __init__(self, inner: ModelDrafter, speed: DraftSpeed, dilation: float = 1.0) -> None:
        super().__init__(inner.context_length)
        self._inner, self._speed, self._dilation = inner, speed, dilation
        self._free_at = 0.0  # when the pass under way ends, on the clock of time.perf_counter
        self.late_s = 0.0  # by how much real passes took longer than emulated ones, summed

    def propose(self) -> Iterator[DraftToken]:
        """See `Drafter`. The passes of one block follow each other without a gap, whatever the sampling costs here."""
        self._free_at = max(self._free_at, time.perf_counter())
        yield from super().propose()

    def read(self, most: int) -> bool:
        """See `Drafter`; a pass that follows another one without a gap."""
        self._free_at = max(self._free_at, time.perf_counter())
        return super().read(most)

    def look_ahead(self, block: Sequence[DraftToken], length: int) -> Iterator[None]:
        """See `Drafter`; its passes follow each other like those of a block."""
        self._free_at = max(self._free_at, time.perf_counter())
        yield from super().look_ahead(block, length)

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        logits = self._inner.forward(tokens, start)
        self._free_at += self._dilation * forward_s(self._speed, len(tokens))
        left = self._free_at - time.perf_counter()
        if left > 0:
            time.sleep(left)
        else:
            self.late_s -= left
            self._free_at -= left
        return logits

    def truncate(self, length: int) -> int:
        return self._inner.truncate(length)

    def close(self) -> None:
        super().close()
        self._inner.close()
