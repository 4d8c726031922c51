"""A toy draft model, as a model with a KV cache and as a source of streams: both of the same logits."""

from collections.abc import Generator, Sequence

import numpy as np

from edge_client.drafters.base import ModelDrafter
from edge_client.drafters.streamed import Scored, TokenSource
from opensled.core.errors import DraftSourceError

VOCABULARY, CONTEXT, REACH = 2048, 400, 3


def logits_after(ids: Sequence[int]) -> np.ndarray:
    """Logits [vocabulary] that depend on the last REACH ids."""
    rng = np.random.default_rng([*ids[-REACH:], len(ids[-REACH:])])
    return rng.normal(0, 3, VOCABULARY).astype(np.float32)


def logprobs_after(ids: Sequence[int]) -> np.ndarray:
    logits = logits_after(ids).astype(np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


class ToyDrafter(ModelDrafter):
    def __init__(self) -> None:
        super().__init__(CONTEXT)
        self.cached: list[int] = []

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        assert start == len(self.cached)
        self.cached += tokens
        return logits_after(self.cached)

    def truncate(self, length: int) -> int:
        del self.cached[length:]
        return length


class ToySource(TokenSource):
    """Streams of `most` tokens. `idle`: how often it says that nothing came, before the first token of a stream."""

    def __init__(self, most: int = 20, idle: int = 0) -> None:
        self.most, self.idle = most, idle
        self.asked: list[tuple[list[int], int]] = []
        self.open = self.given = 0
        self.closed = False
        self.error: DraftSourceError | None = None  # raised after `sound` tokens of a stream
        self.sound = 0

    def stream(self, ids: Sequence[int], candidates: int) -> Generator[Scored | None, None, None]:
        self.asked.append((list(ids), candidates))
        self.open += 1
        try:
            for _ in range(self.idle):
                yield None
            yield from self._tokens(list(ids), candidates)
        finally:
            self.open -= 1

    def _tokens(self, ids: list[int], candidates: int) -> Generator[Scored, None, None]:
        for index in range(self.most):
            if self.error and index >= self.sound:
                raise self.error
            logprobs = logprobs_after(ids)
            likely = np.argsort(-logprobs, kind="stable")[:candidates]
            ids.append(int(logprobs.argmax()))
            self.given += 1
            yield Scored(ids[-1], tuple(likely.tolist()), tuple(logprobs[likely].tolist()))

    def close(self) -> None:
        self.closed = True
