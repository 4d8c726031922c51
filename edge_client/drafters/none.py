"""The drafter that drafts nothing: the server decodes alone and streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opensled.messages import DraftToken, ModelInfo
from opensled.sampling import Sampler


class NoneFactory:
    """`--drafter none`. Needs no model and fits every vocabulary."""

    def __init__(self, model: str = "", threads: int = 0) -> None:
        self.name = "none"

    def check_vocabulary(self, target: ModelInfo) -> None:
        """Nothing to compare: no ids are proposed."""

    def create(self) -> NoneDrafter:
        return NoneDrafter()


class NoneDrafter:
    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        pass

    def propose(self) -> Iterator[DraftToken]:
        return iter(())

    def commit(self, tokens: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        pass
