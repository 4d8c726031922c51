"""What riders are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from opensled.core.messages import Open
from verify_server.acceptance.base import AcceptanceRule
from verify_server.counters import LoopStats

if TYPE_CHECKING:  # a target that decides in another process loads riders without all that
    from verify_server.input_processor import InputProcessor
    from verify_server.kept.keeper import TextKeeper
    from verify_server.tenant_pool import Spent


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
