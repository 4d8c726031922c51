"""What riders are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from opensled.core.messages import Open
from verify_server.round.counters import LoopStats
from verify_server.round.rider import Rider
from verify_server.rules.base import AcceptanceRule

if TYPE_CHECKING:  # a target that decides in another process loads riders without all that
    from verify_server.access.tenant_pool import Spent
    from verify_server.admission.input_processor import InputProcessor


class Keeper(Protocol):
    """Keeps texts of tenants that agreed to it."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Texts, by what became of them."""

    def rider(self, opening: Opening) -> Rider | None:
        """None: nothing of this sequence is kept."""

    def close(self) -> None:
        """Returns once all is written."""


class Opening(NamedTuple):
    """A sequence that begins."""

    message: Open
    prompt_ids: tuple[int, ...]
    tenant: str
    rule: AcceptanceRule
    inputs: InputProcessor
    vocab_size: int  # of the logits
    stats: LoopStats
    keeper: Keeper | None = None  # None = nothing of it is kept
    spent: Spent | None = None  # is told the seconds that pictures take

    @property
    def tokens(self) -> tuple[int, ...]:
        """The text as far as it is known: the prompt and what was committed elsewhere."""
        return (*self.prompt_ids, *self.message.committed)
