"""What the answers under a rule are worth: of each task and over all, beside the same items under the baseline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from lab.testbed.load.interval import Interval
from lab.testbed.quality.asking import Asked, Reply
from lab.testbed.quality.bootstrap import Array, mean_difference, ratio_of_rates

OVERALL = "overall"
MARGIN = 0.02  # of accuracy that a rule may lose and still count as not inferior
# Items below which nothing counts as not inferior: 149 items miss a loss of MARGIN with a chance of 5 % altogether.
FEWEST = 149
GRAM = 4  # tokens of a run that counts as repeated
NOT_INFERIOR, INFERIOR, UNDECIDED = "not inferior", "inferior", "undecided"


@dataclass(frozen=True)
class Compared:
    """A rule beside the baseline, item by item."""

    difference: Interval  # of accuracy
    lost: int  # items that only the baseline answers right
    gained: int  # items that only the rule answers right
    changed: float  # share of items whose tokens differ
    speed: Interval  # tokens/s over those of the baseline


@dataclass(frozen=True)
class Row:
    """The figures of one rule in one task, or over all; `compared` is None for the baseline itself."""

    task: str
    items: int
    accuracy: float
    nats_per_token: float  # negative log-likelihood under the target
    loose: float  # share of tokens
    repetition: float  # share of runs of GRAM tokens that their answer had before
    tokens_per_round: float
    tokens_per_second: float  # of one user
    compared: Compared | None

    @property
    def verdict(self) -> str:
        """Whether the rule loses at most MARGIN; "" of the baseline."""
        if not self.compared:
            return ""
        low, high = self.compared.difference[1:]
        if low >= -MARGIN and self.items >= FEWEST:
            return NOT_INFERIOR
        return INFERIOR if high < -MARGIN else UNDECIDED

    def as_json(self) -> dict[str, Any]:
        document = asdict(self)
        if self.compared:
            intervals = {name: getattr(self.compared, name)._asdict() for name in ("difference", "speed")}
            document["compared"] |= {**intervals, "verdict": self.verdict}
        return document


def rows_of(asked: Mapping[str, Sequence[Asked]], rules: Sequence[str], seed: int) -> dict[str, list[Row]]:
    """By rule, the baseline being the first one: a row for each task, and the last one over all items."""
    parts = {**asked, OVERALL: [each for items in asked.values() for each in items]}
    return {
        rule: [_row(task, items, rule, rules[0], seed) for task, items in parts.items()] for rule in rules
    }


def _row(task: str, asked: Sequence[Asked], rule: str, baseline: str, seed: int) -> Row:
    ours = [each.replies[rule] for each in asked]
    theirs = [each.replies[baseline] for each in asked]
    tokens = sum(len(reply.ids) for reply in ours)
    return Row(
        task=task,
        items=len(asked),
        accuracy=fmean(reply.right for reply in ours),
        nats_per_token=share(sum(reply.nats for reply in ours), tokens),
        loose=share(sum(reply.loose for reply in ours), tokens),
        repetition=repetition([reply.ids for reply in ours]),
        tokens_per_round=share(
            sum(reply.round_tokens for reply in ours), sum(reply.rounds for reply in ours)
        ),
        tokens_per_second=share(tokens, sum(reply.seconds for reply in ours)),
        compared=None if rule == baseline else compared(ours, theirs, seed),
    )


def compared(ours: Sequence[Reply], theirs: Sequence[Reply], seed: int) -> Compared:
    """Replies to the same items, in the same order."""
    pairs = list(zip(ours, theirs, strict=True))
    return Compared(
        difference=mean_difference(_right(ours), _right(theirs), seed),
        lost=sum(other.right and not reply.right for reply, other in pairs),
        gained=sum(reply.right and not other.right for reply, other in pairs),
        changed=fmean(reply.ids != other.ids for reply, other in pairs),
        speed=ratio_of_rates(_pace(ours), _pace(theirs), seed),
    )


def _right(replies: Sequence[Reply]) -> Array:
    return np.array([reply.right for reply in replies], np.float64)


def _pace(replies: Sequence[Reply]) -> tuple[Array, Array]:
    """Tokens and seconds of each."""
    tokens = [len(reply.ids) for reply in replies]
    return np.array(tokens, np.float64), np.array([reply.seconds for reply in replies], np.float64)


def repetition(answers: Sequence[Sequence[int]]) -> float:
    """Share of the runs of GRAM tokens that stand earlier in the same answer, over all answers."""
    runs = [list(_runs(ids)) for ids in answers]
    total = sum(map(len, runs))
    return share(total - sum(len(set(each)) for each in runs), total)


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return (tuple(ids[start : start + GRAM]) for start in range(len(ids) - GRAM + 1))


def share(part: float, whole: float) -> float:
    """0 where there is nothing to divide."""
    return part / whole if whole else 0.0
