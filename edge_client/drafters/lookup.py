"""Prompt lookup decoding on a device: drafts copied from the text itself (opensled/drafting/ngrams.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edge_client.drafters.base import Drafter, DrafterFactory
from opensled.core.messages import DraftToken
from opensled.core.sampling import Sampler
from opensled.drafting.ngrams import NgramIndex


class LookupFactory(DrafterFactory):
    """`--drafter lookup`. Needs no model; proposes only ids that the server has committed."""

    name = "lookup"

    def create(self) -> LookupDrafter:
        return LookupDrafter()


class LookupDrafter(Drafter):
    """Copies what followed the latest earlier occurrence of the last n-gram; the longest n-gram that has one wins."""

    def __init__(self) -> None:
        self._index = NgramIndex(())

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._index, self._sampler = NgramIndex(prompt), sampler

    def commit(self, tokens: Sequence[int]) -> None:
        self._index.extend(tokens)

    def propose(self) -> Iterator[DraftToken]:
        if self._sampler.alone:  # copies are no answer
            return
        for token, confidence in self._index.propose():
            yield self._sampler.certain(token, confidence)

    def close(self) -> None:
        """Forget the text."""
        self._index = NgramIndex(())
