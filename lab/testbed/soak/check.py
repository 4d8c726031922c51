"""Token by token: what an answer lost, repeated, put in another order, or got wrong against the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple


class Damage(NamedTuple):
    """Tokens of an answer that are not as they should be, by what became of them."""

    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    wrong: int = 0

    def __add__(self, other: object) -> Damage:
        """Sum of both, not a longer tuple."""
        assert isinstance(other, Damage)
        return Damage(*(mine + theirs for mine, theirs in zip(self, other)))


def damage(told: Sequence[int], truth: Sequence[int], complete: bool) -> Damage:
    """Compare an answer with the truth; of one that is not `complete` the end may be missing."""
    if tuple(told) == tuple(truth if complete else truth[: len(told)]):
        return Damage()
    missing, extra, duplicated = _differences(told, truth, complete)
    moved = sum((Counter(missing) & Counter(extra)).values())
    wrong = len(extra) - moved
    return Damage(max(0, len(missing) - moved - wrong), duplicated, moved, wrong)


def _differences(
    told: Sequence[int], truth: Sequence[int], complete: bool
) -> tuple[list[int], list[int], int]:
    """Tokens of the truth that are missing, tokens told that are not in it, and how many are told twice."""
    missing: list[int] = []
    extra: list[int] = []
    duplicated = 0
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, truth, told, autojunk=False).get_opcodes():
        cut = not complete and i2 == len(truth)  # what the answer never came to is not missing
        if kind == "equal":
            continue
        if (cut or kind == "insert") and _is_repeated(told, j1, j2):
            duplicated += j2 - j1
        else:
            missing += truth[i1 : min(i2, i1 + j2 - j1) if cut else i2]
            extra += told[j1:j2]
    return missing, extra, duplicated


def _is_repeated(told: Sequence[int], start: int, stop: int) -> bool:
    """Whether the same tokens stand right before this part, or right after it."""
    part, length = list(told[start:stop]), stop - start
    before = list(told[max(0, start - length) : start])
    return part in (before, list(told[stop : stop + length]))
