"""Texts at the same time on one server: what a step costs over rows, what users read, whether a text is itself again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from statistics import median
from typing import Any

from lab.benchmarks.program import say
from lab.testbed.bench_drafts.target import NO_DRAFTS, Batch, Target
from opensled.core.errors import OpenSledError, Unreachable

ROWS, QUICK_ROWS = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8)
USERS = (1, 4, 8)
REPEATS = 3
AMONG = 3  # other texts, beside which a text is asked again
_numbers = count(104_729, 7_919)  # of a process: no prompt comes twice


def stories(number: int) -> list[str]:
    """Prompts that begin unlike all others, so that nothing of them is in a cache."""
    return [f"{next(_numbers)} is the number of a long story. It begins like this:" for _ in range(number)]


async def rows_curve(target: Target, rows: Sequence[int], tokens: int, repeats: int) -> dict[str, Any]:
    """Without the server's own drafts, where it takes that wish."""
    return await _levels(target, rows, tokens, repeats, stories, NO_DRAFTS)


async def at_users(target: Target, questions: Iterator[str], tokens: int, repeats: int) -> dict[str, Any]:
    """The server as it is, asked as people ask."""
    return await _levels(target, USERS, tokens, repeats, lambda users: list(islice(questions, users)), {})


async def _levels(
    target: Target,
    levels: Sequence[int],
    tokens: int,
    repeats: int,
    prompts: Callable[[int], list[str]],
    more: dict[str, Any],
) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for level in levels:
        say(f"{level} text{'s' * (level > 1)} at once ...")
        try:
            batches = [await target.together(prompts(level), tokens, **more) for _ in range(repeats)]
        except Unreachable:
            raise
        except OpenSledError as error:
            if not found:
                raise
            return {"levels": found, "end": f"{level} texts at once fail: {error}"}
        if why := _unmeasured(batches, level):
            return {"levels": found, "end": why}
        found.append(_level(level, batches))
    return {"levels": found, "end": ""}


def _unmeasured(batches: Sequence[Batch], level: int) -> str:
    """Why a level has no figure; "" = it has one."""
    if all(batch.step_s for batch in batches):
        return ""
    if any(batch.is_short for batch in batches):
        return f"with {level} texts at once some ended before others began"
    return f"the server writes fewer than {level} texts at once, others wait"


def _level(level: int, batches: Sequence[Batch]) -> dict[str, Any]:
    steps = [batch.step_s for batch in batches]
    step_s = median(steps)
    told = [batch.counts for batch in batches if batch.counts]
    return {
        "texts": level,
        "ms": round(1000 * step_s, 3),
        "tokens_per_s": round(level / step_s, 2),
        "samples_ms": [round(1000 * each, 3) for each in steps],
        "drafted": sum(each.drafted for each in told) if told else None,
        "accepted": sum(each.accepted for each in told) if told else None,
    }


async def asked_again(target: Target, tokens: int) -> dict[str, bool]:
    """Whether one text is the same alone, and among others."""
    prompt, *others = stories(1 + AMONG)
    first, again = [(await target.ask(prompt, tokens)).text for _ in range(2)]
    batch = await target.together([prompt, *others], tokens)
    return {"alone": first == again, "among_others": first == batch.texts[0].text}
