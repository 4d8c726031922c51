"""How answers are drafted just now, why, and what it brings: what chat, page, API and scrapers show alike."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class DraftStatus:
    """The present state. Rates in tokens/s of the latest whole answers, behind their first tokens; None: not known."""

    drafting: bool
    words: str  # what holds and why
    length: int = 0  # tokens of a block
    drafted_rate: float | None = None  # of answers with drafts
    plain_rate: float | None = None  # of answers without

    @property
    def gain(self) -> float | None:
        """How many times as fast answers with drafts come; None where one of the rates is not known."""
        return self.drafted_rate / self.plain_rate if self.drafted_rate and self.plain_rate else None

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"gain": self.gain}
