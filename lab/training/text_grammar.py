"""A stochastic grammar: sentences with slots, each slot with several valid ways on."""

import random
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")
Rules = Mapping[str, Sequence[str]]

_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")


def pick(rng: random.Random, choices: Sequence[T]) -> T:
    """One of `choices`, earlier ones more often (1/rank): real text is skewed, a uniform choice has no best token."""
    cumulative = list(accumulate(1.0 / (rank + 1) for rank in range(len(choices))))
    return rng.choices(choices, cum_weights=cumulative)[0]


def expand(rng: random.Random, rules: Rules, template: str, bound: Mapping[str, str] | None = None) -> str:
    """Fill every `{slot}` of `template`: from `bound` where it stands there, else by a choice, again expanded.

    "a" becomes "an" where the word that came out needs it.
    """
    known = bound or {}

    def fill(match: re.Match[str]) -> str:
        slot = match.group(1)
        return known[slot] if slot in known else expand(rng, rules, pick(rng, rules[slot]), known)

    return _ARTICLE.sub(r"\1n ", _SLOT.sub(fill, template))


def sentences(rng: random.Random, rules: Rules, slots: Sequence[str], bound: Mapping[str, str]) -> str:
    """One sentence for every slot named, joined by spaces, each starting with a capital letter."""
    parts = (expand(rng, rules, pick(rng, rules[slot]), bound) for slot in slots)
    return " ".join(part[0].upper() + part[1:] for part in parts)
