"""What a draft-length policy does at present and why, for people and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class DraftStatus:
    """The present state. Rates in tokens/s; None: not known yet."""

    drafting: bool
    words: str  # what holds and why, such as "k = 4: 31 tokens/s expected, server alone 18"
    length: int = 0  # tokens of a block that starts with nothing at hand; of a tree its nodes
    expected_rate: float | None = None  # with drafts
    server_rate: float | None = None  # of the server's own decoding
    token_seconds: float | None = None  # to draft one token
    acceptance: float | None = None  # chance of the first token of a block

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def rested(status: DraftStatus) -> DraftStatus:
    """The status while the server wants no drafts, whatever the policy would do."""
    words = "not drafting: the server asks for no drafts, as its own decoding is faster for all users now"
    return replace(status, drafting=False, length=0, words=words)


def drafting_words(length: int, expected: float, servers: float | None, tree: int = 0) -> str:
    """Why blocks of `length` tokens are drafted, or trees of `tree` nodes; rates in tokens/s."""
    alone = "not heard yet" if servers is None else _rate(servers)
    shape = f"trees of {tree}" if tree else f"k = {length}"
    return f"{shape}: {_rate(expected)} tokens/s expected, server alone {alone}"


def resting_words(expected: float, servers: float) -> str:
    """Why nothing is drafted where the server alone is faster; rates in tokens/s."""
    return f"not drafting: the server alone is faster, {_rate(servers)} against {_rate(expected)} tokens/s"


def battery_words(percent: float, floor: float) -> str:
    """Why nothing is drafted with the battery at `percent`."""
    return f"not drafting: the battery is at {percent:.0f} %, and drafts rest below {floor:.0f} %"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 9.95 else f"{rate:.1f}"
