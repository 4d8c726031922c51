"""How answers are drafted just now, why, and what it brings: what chat, page, API and scrapers show alike."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class DraftStatus:
    """The present state. Rates in tokens/s; None: not known yet.

    `server_rate` is the one baseline: both gains are ratios to it.
    """

    drafting: bool
    words: str  # what holds and why
    length: int = 0  # tokens of a block that starts with nothing at hand; of a tree its nodes
    expected_rate: float | None = None  # with drafts, by the law of a round
    server_rate: float | None = None  # of the server's own decoding
    token_seconds: float | None = None  # to draft one token
    acceptance: float | None = None  # chance of the first token of a block
    measured_rate: float | None = None  # of the latest answers with drafts, behind their first tokens

    def gain(self, rate: float | None) -> float | None:
        """`rate` as a multiple of the server's own decoding; None where one of the two is not known."""
        return rate / self.server_rate if rate and self.server_rate else None

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        gains = {
            "expected_gain": self.gain(self.expected_rate),
            "measured_gain": self.gain(self.measured_rate),
        }
        return asdict(self) | gains
