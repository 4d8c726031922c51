"""One measured number: sources for the same board differ two- to fourfold, so none is *the* number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opensled.errors import UsageError

KEYS = {"min", "typical", "max", "source"}


@dataclass(frozen=True)
class Quantity:
    """A number with the range its sources span. Its unit stands in the name of its key."""

    typical: float
    min: float
    max: float
    source: str  # who measured it, or how it was derived

    @classmethod
    def of(cls, table: Any, key: str) -> Quantity:
        """From a TOML table {min, typical, max, source}; raises UsageError naming `key`."""
        if not isinstance(table, Mapping) or set(table) != KEYS:
            raise UsageError(f"{key}: a table with just min, typical, max and source is needed")
        low, typical, high = (table[name] for name in ("min", "typical", "max"))
        numbers = (low, typical, high)
        if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in numbers):
            raise UsageError(f"{key}: min, typical and max are numbers")
        if not 0 <= low <= typical <= high:
            raise UsageError(f"{key}: 0 <= min <= typical <= max is needed, not {low}, {typical}, {high}")
        if not isinstance(table["source"], str) or not table["source"].strip():
            raise UsageError(f"{key}: name the source")
        return cls(float(typical), float(low), float(high), table["source"])

    def __str__(self) -> str:
        if self.min == self.max:
            return f"{self.typical:g}"
        return f"{self.typical:g} ({self.min:g} to {self.max:g})"
