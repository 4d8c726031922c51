"""What the server asks of a target model, without naming a tensor library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from opensled.messages import SamplingParams


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one session to compute in a step.

    KV of positions [0, start) is already in the session's blocks; this forward writes [start, start + n).
    """

    tokens: tuple[int, ...]  # n >= 1 ids at positions start, start + 1, ...
    start: int
    blocks: tuple[int, ...]  # KV block numbers that cover positions [0, start + n), in order
    rows: int  # scores are wanted after each of the last `rows` tokens; 0 <= rows <= n


class Scores(Protocol):
    """What a forward pass gives: one row per wanted token, in the order of the segments."""

    def sample(self, rows: Sequence[int], params: SamplingParams, key: bytes, position: int) -> list[int]:
        """The target's own tokens for consecutive `rows`; row i of them decides position `position + i`.

        Shared-noise argmax (opensled/noise.py) over the whole vocabulary, float64; ties go to the lowest id.
        Raises NonFiniteLogits if one of these rows holds NaN or +infinity or nothing finite.
        """


@dataclass(frozen=True)
class EngineInfo:
    """Facts of a loaded target."""

    model_id: str
    vocab_size: int  # width of the logits, padding included
    context_length: int  # positions
    eos_ids: tuple[int, ...]
    numerics: str  # "exact": a row's bits do not depend on its batch; "fast": everything else
    dtype: str  # "float64", "float32", "bfloat16", "float16"
    device: str
    num_blocks: int  # KV blocks in the pool
    block_size: int  # tokens per KV block


class TargetEngine(Protocol):
    """A target model with its paged KV. Called from one thread."""

    info: EngineInfo

    def forward(self, segments: Sequence[Segment]) -> Scores:
        """One forward pass over all segments as one ragged batch."""
