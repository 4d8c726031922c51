"""What answers of a real pair say: ratios to no drafts with intervals, tokens per round, the best drafter of a kind.

A unit is one prompt under one sampling, asked of all contenders in turns. Intervals are bootstrap intervals of 95 %
over the prompts, drawn again within each kind.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lab.benchmarks.real_contenders import BOTH, CONTENDERS, NONE, SAMPLINGS, SETUPS
from lab.benchmarks.real_texts import KINDS, MORE_KINDS
from lab.testbed.provenance import SEED

RESAMPLES = 2000  # of the bootstrap
Unit = Mapping[str, Any]  # `setup`, `sampling`, `kind`, `number`, and under `answers` what each contender did
Rate = Callable[[Mapping[str, Any]], float]


def rate(answer: Mapping[str, Any]) -> float:
    """Tokens/s of an answer, from the request to the last token."""
    return float(answer["tokens"] / answer["seconds"])


def writing_rate(answer: Mapping[str, Any]) -> float:
    """Tokens/s after the first text, so without the reading of the prompt."""
    return float(max(1, answer["tokens"] - 1) / max(1e-3, answer["seconds"] - answer["first_s"]))


def ordered(units: Iterable[Unit]) -> list[Unit]:
    """By set-up, sampling, kind and number."""
    places = [*SETUPS, *SAMPLINGS, *KINDS, *MORE_KINDS]
    return sorted(
        units,
        key=lambda unit: (
            *(places.index(unit[key]) for key in ("setup", "sampling", "kind")),
            unit["number"],
        ),
    )


def runs(units: Sequence[Unit]) -> dict[tuple[str, str], list[Unit]]:
    """(set-up, sampling) -> its units."""
    found: dict[tuple[str, str], list[Unit]] = {}
    for unit in ordered(units):
        found.setdefault((unit["setup"], unit["sampling"]), []).append(unit)
    return found


def shared(units: Sequence[Unit]) -> list[str]:
    """The contenders that were asked in every unit."""
    return [name for name in CONTENDERS if all(name in unit["answers"] for unit in units)]


def by_kind(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    return {
        kind: found for kind in (*KINDS, *MORE_KINDS) if (found := [u for u in units if u["kind"] == kind])
    }


def ratio(units: Sequence[Unit], contender: str, of: Rate = rate) -> dict[str, float]:
    """The geometric mean over the kinds, each the geometric mean of its prompts' ratios to no drafts."""
    return mean_ratio([_logs(group, contender, of) for group in by_kind(units).values()])


def best_ratio(kinds: Mapping[str, Sequence[Unit]], best: Mapping[str, str]) -> dict[str, float]:
    """The same where each kind has its own contender."""
    return mean_ratio([_logs(units, best[kind], rate) for kind, units in kinds.items()])


def _logs(units: Sequence[Unit], contender: str, of: Rate) -> list[float]:
    return [math.log(of(unit["answers"][contender]) / of(unit["answers"][NONE])) for unit in units]


def mean_ratio(groups: Sequence[Sequence[float]]) -> dict[str, float]:
    """exp of the mean over groups of their means, and the bootstrap interval; `groups`: logarithms of ratios."""
    draw = random.Random(SEED)

    def again() -> float:
        return statistics.fmean(statistics.fmean(draw.choices(group, k=len(group))) for group in groups)

    means = sorted(again() for _ in range(RESAMPLES))
    mean = statistics.fmean(map(statistics.fmean, groups))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]
    return {name: round(math.exp(value), 3) for name, value in (("mean", mean), ("low", low), ("high", high))}


def tokens_per_round(units: Sequence[Unit], contender: str) -> float | None:
    """Tokens that a block and its verdict commit, pooled over the rounds; None without a round."""
    answers = [unit["answers"][contender] for unit in units]
    rounds = sum(answer["rounds"] for answer in answers)
    return round(sum(answer["round_tokens"] for answer in answers) / rounds, 3) if rounds else None


def accepted(units: Sequence[Unit], drafter: str) -> float | None:
    """Share of the draft tokens that stand; None without drafts."""
    answers = [unit["answers"][drafter] for unit in units]
    drafted = sum(answer["drafted"] for answer in answers)
    return round(sum(answer["accepted"] for answer in answers) / drafted, 3) if drafted else None


def summary(units: Sequence[Unit]) -> dict[str, Any]:
    """All of one run, that is, of one set-up and sampling."""
    names = [name for name in shared(units) if name != NONE]
    kinds = by_kind(units)
    drafting = [name for name in names if name != BOTH]
    found = {kind: {name: ratio(group, name) for name in names} for kind, group in kinds.items()}
    best = (
        {kind: max(drafting, key=lambda name: each[name]["mean"]) for kind, each in found.items()}
        if drafting
        else {}
    )
    everything = {name: ratio(units, name) for name in names}
    return {
        "prompts": {kind: len(group) for kind, group in kinds.items()},
        "long prompts": sum(unit["long"] for unit in units),
        "ratios": found,
        "over the kinds": everything,
        "best of each kind": best,
        "best of each kind, over the kinds": best_ratio(kinds, best) if best else None,
        "over the kinds, after the first text": {name: ratio(units, name, writing_rate) for name in names},
        "no drafts, tokens/s": {
            kind: round(statistics.median(rate(unit["answers"][NONE]) for unit in group), 2)
            for kind, group in kinds.items()
        },
        "tokens per round": {
            kind: {name: tokens_per_round(group, name) for name in drafting} for kind, group in kinds.items()
        },
        "accepted": {
            kind: {name: accepted(group, name) for name in drafting} for kind, group in kinds.items()
        },
        "other texts": {name: sum(not unit["answers"][name]["same"] for unit in units) for name in names},
    }
