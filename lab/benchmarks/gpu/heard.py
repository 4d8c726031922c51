"""What the users of a cell got, from what each of them read."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from lab.benchmarks.gpu.streams import Heard
from lab.testbed.load.slo import SHARE


def summarise(heard: Sequence[Heard], begin: float, end: float, paces: Sequence[int]) -> dict[str, Any]:
    """Of the window from `begin` to `end`; at each of `paces` (tokens/s) whether SHARE of the users had it."""
    each = sorted(_pace(one, begin, end) for one in heard)
    gaps = sorted(gap for one in heard for gap in _gaps(one, begin, end))
    texts, firsts = sum(len(one.texts) for one in heard), [each for one in heard for each in one.first_s]
    return {
        "users": len(heard),
        "tokens_per_s": _tokens(heard, begin, end) / (end - begin),
        "pace_median": median(each),
        "pace_of_slowest_tenth": each[int((1 - SHARE) * len(each))],
        "held": {str(pace): sum(own >= pace for own in each) >= SHARE * len(each) for pace in paces},
        "gap_p99_s": gaps[int(0.99 * len(gaps))] if gaps else None,
        "first_token_s": median(firsts) if firsts else None,
        "accepted_share": _share(sum(one.accepted for one in heard), sum(one.drafted for one in heard)),
        "tokens_per_block": _share(sum(one.drafted for one in heard), sum(one.rounds for one in heard)),
        "texts": texts,
        "flips": sum(one.flips for one in heard),
        "errors": [error for one in heard for error in one.errors][:3],
    }


def _within(one: Heard, begin: float, end: float) -> Iterator[list[tuple[float, int]]]:
    """Of each answer what arrived in the window."""
    for answer in one.arrivals:
        yield [arrival for arrival in answer if begin <= arrival[0] < end]


def _tokens(heard: Iterable[Heard], begin: float, end: float) -> int:
    return sum(tokens for one in heard for answer in _within(one, begin, end) for _, tokens in answer)


def _pace(one: Heard, begin: float, end: float) -> float:
    """Tokens after the first arrival of each answer, over the seconds that they took; 0 for a user who read nothing."""
    tokens, seconds = 0, 0.0
    for answer in filter(None, _within(one, begin, end)):
        tokens += sum(count for _, count in answer[1:])
        seconds += answer[-1][0] - answer[0][0]
    return tokens / seconds if seconds else 0.0


def _gaps(one: Heard, begin: float, end: float) -> Iterator[float]:
    """Seconds between two arrivals of an answer."""
    for answer in _within(one, begin, end):
        yield from (later - earlier for (earlier, _), (later, _) in pairwise(answer))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
