"""What loose rules have in common: they let draft tokens stand that are not the target's own, where that does no harm.

The text is then no longer the target's: such a rule is served only where the operator names it, runs only for sequences
that ask for it, and tells which tokens it let stand (docs/loose-rules.md).

x_t is the target's shared-noise sample after the emitted prefix, loose tokens included: the rows of a verified chain
are computed behind the draft's own tokens, so row i scores what follows them whether they are the target's or not. Each
position is sampled once, at any temperature. Entropy and probabilities are those of the raw logits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from opensled.core.errors import InvalidRequest
from verify_server.rules.base import (
    AcceptanceResult,
    AcceptanceRule,
    Decision,
    DraftCheck,
    SessionScores,
)

GUIDED = "guided"  # the option by which structured output is decided loosely as well


class LooseRule(AcceptanceRule):
    """A chain is taken up to the first mismatch that does not stand."""

    lossless = False
    guided = False

    def decide(self, check: DraftCheck, scores: SessionScores) -> Decision:
        """See `AcceptanceRule`."""
        own = yield scores.request(range(len(check.draft) + 1), 0)
        barred = check.ends | {id for id, bias in check.params.logit_bias if bias < 0}
        loose: list[int] = []
        for index, (drafted, sampled) in enumerate(zip(check.ids, own)):
            if drafted == sampled:
                continue
            is_end = drafted in barred or sampled in check.ends
            if is_end or not self._stands(index, check.ids, own, scores):
                return AcceptanceResult(index, sampled, loose=tuple(loose))
            loose.append(index)
        return AcceptanceResult(len(check.draft), own[-1], loose=tuple(loose))

    @abstractmethod
    def _stands(self, index: int, ids: Sequence[int], own: Sequence[int], scores: SessionScores) -> bool:
        """Whether the mismatch at draft token `index` stands. `own`: the target's samples after each row."""


def options_of(text: str, known: dict[str, str], rule: str) -> dict[str, str]:
    """`known` with the values that `text` gives: name=value, separated by commas; a name alone stands for name=yes.

    Raises InvalidRequest for other names.
    """
    found = dict(known)
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, _, value = word.partition("=")
        if name not in known:
            raise InvalidRequest(
                f"rule {rule} has no option {name[:80]!r}; its options are {', '.join(known)}", "rule"
            )
        found[name] = value or "yes"
    return found


def number(value: str, name: str, low: float, high: float) -> float:
    """An option from `low` to `high`; raises InvalidRequest."""
    try:
        found = float(value)
    except ValueError:
        found = float("nan")
    if not low <= found <= high:  # also NaN
        raise InvalidRequest(f"{name}={value[:80]} must be a number from {low:g} to {high:g}", "rule")
    return found


def whole(value: str, name: str, high: int) -> int:
    """An option that counts, up to `high`; raises InvalidRequest."""
    if not (value.isascii() and value.isdigit() and len(value) <= len(str(high)) and int(value) <= high):
        raise InvalidRequest(f"{name}={value[:80]} must be a whole number from 0 to {high}", "rule")
    return int(value)


def is_guided(options: dict[str, str]) -> bool:
    """Whether structured output is asked for by the option GUIDED; raises InvalidRequest."""
    if options[GUIDED] not in ("yes", "no"):
        raise InvalidRequest(f"{GUIDED}={options[GUIDED][:80]} must be yes or no", "rule")
    return options[GUIDED] == "yes"
