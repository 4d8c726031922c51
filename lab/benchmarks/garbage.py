"""A tenant that sends garbage drafts beside an honest one: what they cost the honest tenant, in time and in text."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edge_client.link.link import Link
from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.tenants import (
    Drafts,
    Rounds,
    TenantRequest,
    ask,
    close,
    late_share,
    links,
    random_prompt,
    served,
)
from lab.testbed.cells import REGIMES
from opensled.core.errors import OpenSledError
from opensled.core.messages import Open, SamplingParams

REGIME = "hub"
D = 2.0  # real seconds for each emulated one
HONEST, OTHER = "honest", "other"
DEVICES = 4  # of each tenant, all of them always at it
TOKENS = 96  # of an answer
RIGHT = 0.75  # of an honest device's draft tokens
LENGTH = 4  # of an honest draft, where the server says nothing
THINKING_S = 0.02  # emulated seconds that an honest device takes for each draft token
LONGEST = 16  # of a garbage draft: all that the server takes
ALLOWED = 1 / 1.1  # the honest tenant's rounds may take a tenth longer
GARBAGE = 2  # <|user|>, which hardly any answer has
PARAMS = SamplingParams(temperature=0.8, max_tokens=TOKENS, ignore_eos=True)


def measure(quick: bool) -> Figure:
    """Windows with garbage, with the same sessions without drafts, and with the honest tenant alone, in turns."""
    seconds, repeats = (2.0, 1) if quick else (20.0, 5)
    with served(REGIMES[REGIME], D, (HONEST, OTHER)) as process:
        samples, answers = asyncio.run(_windows(process.address, seconds, repeats))
    return Figure(
        title="Garbage drafts beside an honest tenant",
        unit="ms",
        more_is_better=False,
        compared=(
            f"The slowest hundredth (p99) of the rounds of {DEVICES} honest devices, from a draft to its verdict, or "
            "from one verdict to the next where the server decodes by itself; emulated ms on regime "
            f"{REGIME} (dilation {D:g}), policy goodput. Beside them another tenant's {DEVICES} sessions, whose "
            f"devices send {LONGEST} wrong tokens at once after each verdict, without a name and whatever the server "
            "hints at; or which draft nothing; or no other tenant. Every answer of the honest tenant is compared with "
            "the one that the target gave without drafts."
        ),
        loses="A tenant's places cost others step time, with drafts or without: see the row without another tenant.",
        samples=samples,
        ratios=(
            Comparison("garbage against no drafts", "beside garbage", "beside no drafts", ALLOWED),
            Comparison("garbage against no other tenant", "beside garbage", "alone"),
        ),
        label="emulated",
        facts={
            "seconds of a window": seconds,
            "honest answers, all as without drafts": answers,
            "late steps, share": round(late_share(process), 4),
        },
    )


async def _windows(address: str, seconds: float, repeats: int) -> tuple[dict[str, list[float]], int]:
    samples: dict[str, list[float]] = {"alone": [], "beside no drafts": [], "beside garbage": []}
    others: dict[str, Drafts | None] = {"beside no drafts": None, "beside garbage": _garbage}
    lines = links(address, (HONEST, OTHER))
    try:
        # What the target writes without drafts.
        plain = await asyncio.gather(
            *(ask(lines[HONEST], HONEST, _request(number)) for number in range(DEVICES))
        )
        rounds: Rounds = []
        at_work = [
            asyncio.ensure_future(_honest(lines[HONEST], number, asked.tokens, rounds))
            for number, asked in enumerate(plain)
        ]
        for turn in range(repeats + 1):
            for name in samples:
                beside = lines[OTHER] if name in others else None
                slowest = await _window(beside, others.get(name), seconds, rounds, at_work)
                if turn:  # the first one only warms up
                    samples[name].append(slowest)
        for task in at_work:
            task.cancel()
        return samples, sum(await asyncio.gather(*at_work))
    finally:
        await close(lines)


async def _window(
    beside: Link | None,
    draft: Drafts | None,
    seconds: float,
    rounds: Rounds,
    at_work: Sequence[asyncio.Future[int]],
) -> float:
    """The honest tenant's p99 in emulated ms while another tenant is there; the first fifth of the time is left out."""
    others = [asyncio.ensure_future(_again(beside, number, draft)) for number in range(DEVICES) if beside]
    start = time.perf_counter() + seconds / 5
    await asyncio.sleep(1.2 * seconds)
    tasks: list[asyncio.Future[Any]] = [*at_work, *others]
    for task in tasks:
        if task.done():
            task.result()  # it only ends by an error
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    found = sorted(1000 * took / D for ended, took in rounds if ended >= start)
    return found[int(0.99 * len(found))]


# -- devices ----------------------------------------------------------------------------------------------------


def _request(number: int, device: str = "") -> Open:
    prompt = random_prompt(random.Random(f"prompt {number}"))
    return Open(prompt, replace(PARAMS, seed=number), device=device)


async def _honest(link: Link, number: int, text: list[int], rounds: Rounds) -> int:
    """Answer after answer until cancelled; how many there were. Raises OpenSledError if one is not `text`."""
    answers, draw = 0, random.Random(number)

    async def draft(asked: TenantRequest) -> list[int] | None:
        if asked.hint == 0:
            return None
        place = len(asked.tokens)
        known = text[place : place + min(asked.hint or LENGTH, TOKENS - place - 1)]
        tokens = [token if draw.random() < RIGHT else GARBAGE for token in known]
        await asyncio.sleep(D * THINKING_S * len(tokens))
        return tokens

    try:
        while True:
            asked = await ask(link, HONEST, _request(number, f"honest {number}"), draft, rounds)
            if asked.tokens != text:
                raise OpenSledError("drafts have changed an answer")
            answers += 1
    except asyncio.CancelledError:
        return answers


async def _garbage(asked: TenantRequest) -> list[int]:
    return [GARBAGE] * LONGEST


async def _again(link: Link, number: int, draft: Drafts | None) -> None:
    """Session after session until cancelled."""
    while True:
        await ask(link, OTHER, _request(100 + number), draft)
