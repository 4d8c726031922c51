"""A drafter that proposes nothing: the server decodes alone."""

from collections.abc import Iterator, Sequence

from edge_client.drafters.base import Drafter, DrafterFactory
from opensled.core.messages import DraftToken
from opensled.core.sampling import Sampler


class NoneDrafter(Drafter):
    """Proposes nothing."""

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        pass

    def propose(self) -> Iterator[DraftToken]:
        return iter(())

    def commit(self, tokens: Sequence[int]) -> None:
        pass


class NoneFactory(DrafterFactory):
    """`--drafter none`. Needs no model and fits every vocabulary."""

    name = "none"

    def create(self) -> NoneDrafter:
        return NoneDrafter()
