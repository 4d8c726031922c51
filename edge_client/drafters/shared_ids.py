"""Drafts of a model that shares nearly all ids with the target, such as Gemma 3 without image ids, or an R1 distill.

The model never draws an id that means something else to the target, and reads a stand-in for an id that it lacks. So
positions stay, and noise is shared as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from edge_client.drafters.base import Drafter
from edge_client.drafters.vocabulary import Vocabulary
from opensled.core.messages import DraftToken, TreeNode
from opensled.core.sampling import Sampler


class SharedIdsDrafter(Drafter):
    """A drafter behind a mask of ids."""

    def __init__(self, inner: Drafter, vocabulary: Vocabulary) -> None:
        self._inner, self._vocabulary = inner, vocabulary
        self._foreign = np.array(sorted(vocabulary.foreign), np.int64)

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        size = min(self._vocabulary.size, sampler.vocab_size or self._vocabulary.size)
        barred = self._foreign[self._foreign < size]
        self._inner.begin(self._readable(prompt), replace(sampler, vocab_size=size, barred=barred))

    def commit(self, tokens: Sequence[int]) -> None:
        self._inner.commit(self._readable(tokens))

    def _readable(self, tokens: Sequence[int]) -> list[int]:
        """`tokens` as the model reads them."""
        size, foreign, stand_in = self._vocabulary.size, self._vocabulary.foreign, self._vocabulary.stand_in
        return [token if token < size and token not in foreign else stand_in for token in tokens]

    def propose(self) -> Iterator[DraftToken]:
        return self._inner.propose()

    def propose_tree(self) -> Iterator[TreeNode]:
        return self._inner.propose_tree()

    @property
    def ready(self) -> int:
        return self._inner.ready

    @property
    def behind(self) -> bool:
        return self._inner.behind

    def read(self, most: int) -> bool:
        return self._inner.read(most)

    def look_ahead(self, block: Sequence[DraftToken], length: int) -> Iterator[None]:
        ids = self._readable([token.id for token in block])
        return self._inner.look_ahead([token._replace(id=id) for token, id in zip(block, ids)], length)

    def interrupt(self) -> None:
        self._inner.interrupt()

    def close(self) -> None:
        self._inner.close()
