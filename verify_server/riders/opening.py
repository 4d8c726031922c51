"""What riders are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opensled.core.messages import Open
from verify_server.round.counters import LoopStats
from verify_server.rules.base import AcceptanceRule

if TYPE_CHECKING:  # a target that decides in another process loads riders without all that
    from adapt.kept.keeper import TextKeeper
    from verify_server.access.tenant_pool import Spent
    from verify_server.admission.input_processor import InputProcessor


class Opening(NamedTuple):
    """A sequence that begins."""

    message: Open
    prompt_ids: tuple[int, ...]
    tenant: str
    rule: AcceptanceRule
    inputs: InputProcessor
    vocab_size: int  # of the logits
    stats: LoopStats
    keeper: TextKeeper | None = None  # None = nothing of it is kept
    spent: Spent | None = None  # is told the seconds that pictures take

    @property
    def tokens(self) -> tuple[int, ...]:
        """The text as far as it is known: the prompt and what was committed elsewhere."""
        return (*self.prompt_ids, *self.message.committed)
