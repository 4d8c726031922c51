"""A tenant that sends garbage drafts beside an honest one: what they cost the honest tenant, in time and in text."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.figure import Comparison, Figure
from benchmarks.tenants import TenantRequest, ask, close, late_share, links, note, served
from edge_client.link import GrpcStream, Link
from opensled.errors import OpenSledError
from opensled.messages import Draft, DraftBlock, DraftToken, Open, Opened, SamplingParams
from opensled_testbed.cells import REGIMES

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

Tokens = tuple[int, ...]
# What a device that holds so many tokens drafts on such a hint, None = nothing.
Drafter = Callable[[int, int | None], Tokens | None]


@dataclass
class Talk:
    """One answer to one device."""

    asked: TenantRequest
    rounds: list[tuple[float, float]]  # when they ended, and how many seconds they took
    hint: int | None
    counter: int = 0  # of drafts


def measure(quick: bool) -> Figure:
    """Windows with garbage, with the same sessions without drafts, and with the honest tenant alone, in turns."""
    seconds, repeats = (2.0, 1) if quick else (20.0, 5)
    with served(REGIMES[REGIME], D, (HONEST, OTHER)) as process:
        samples, answers = asyncio.run(_windows(process.address, seconds, repeats))
    return Figure(
        name="garbage",
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
        loses="A tenant's places cost others step time, with drafts or without: see against nobody.",
        samples=samples,
        ratios=(
            Comparison("garbage against no drafts", "beside garbage", "beside no drafts", ALLOWED),
            Comparison("garbage against nobody", "beside garbage", "alone"),
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
    others: dict[str, Drafter | None] = {"beside no drafts": None, "beside garbage": _garbage}
    lines = links(address, (HONEST, OTHER))
    try:
        texts = await asyncio.gather(*(_reference(lines[HONEST], number) for number in range(DEVICES)))
        rounds: list[tuple[float, float]] = []
        at_work = [
            asyncio.ensure_future(_honest(lines[HONEST], number, text, rounds))
            for number, text in enumerate(texts)
        ]
        for turn in range(repeats + 1):
            for name in samples:
                beside = lines[OTHER] if name in others else None
                slowest = await _window(beside, others.get(name), seconds, rounds, at_work)
                if turn:  # the first one only warms up
                    samples[name].append(slowest)
        return samples, await _stopped(at_work)
    finally:
        await close(lines)


async def _window(
    beside: Link | None,
    drafter: Drafter | None,
    seconds: float,
    rounds: list[tuple[float, float]],
    at_work: Sequence[asyncio.Future[int]],
) -> float:
    """The honest tenant's p99 in emulated ms while another tenant is there; the first fifth of the time is left out."""
    others = [asyncio.ensure_future(_again(beside, number, drafter)) for number in range(DEVICES) if beside]
    start = time.perf_counter() + seconds / 5
    await asyncio.sleep(1.2 * seconds)
    tasks: list[asyncio.Future[Any]] = [*at_work, *others]
    for task in tasks:
        if task.done():
            task.result()  # it only ends by an error
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return _p99([1000 * took / D for ended, took in rounds if ended >= start])


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


async def _stopped(at_work: Sequence[asyncio.Future[int]]) -> int:
    """The number of answers of devices that are told to stop."""
    for task in at_work:
        task.cancel()
    return sum(await asyncio.gather(*at_work))


# -- devices ----------------------------------------------------------------------------------------------------


def _request(number: int) -> Open:
    draw = random.Random(f"prompt {number}")
    prompt = tuple(draw.randrange(300, 1300) for _ in range(24))
    return Open(prompt, replace(PARAMS, seed=number))


async def _reference(link: Link, number: int) -> list[int]:
    """What the target writes without drafts."""
    return (await ask(link, HONEST, _request(number))).tokens


async def _honest(link: Link, number: int, text: list[int], rounds: list[tuple[float, float]]) -> int:
    """Answer after answer until cancelled; how many there were. Raises OpenSledError if one is not `text`."""
    answers, draw = 0, random.Random(number)

    def drafter(place: int, hint: int | None) -> Tokens | None:
        if hint == 0:
            return None
        known = text[place : place + min(hint or LENGTH, TOKENS - place - 1)]
        return tuple(token if draw.random() < RIGHT else GARBAGE for token in known)

    try:
        while True:
            request = replace(_request(number), device=f"honest {number}")
            talk = await _talk(link, HONEST, request, drafter, rounds, THINKING_S)
            if talk.asked.tokens != text:
                raise OpenSledError("drafts have changed an answer")
            answers += 1
    except asyncio.CancelledError:
        return answers


def _garbage(place: int, hint: int | None) -> Tokens:
    return (GARBAGE,) * LONGEST


async def _again(link: Link, number: int, drafter: Drafter | None) -> None:
    """Session after session until cancelled."""
    while True:
        await _talk(link, OTHER, _request(100 + number), drafter, [])


async def _talk(
    link: Link,
    tenant: str,
    request: Open,
    drafter: Drafter | None,
    rounds: list[tuple[float, float]],
    thinking_s: float = 0.0,
) -> Talk:
    """One answer; its rounds are added to `rounds` as they end. A draft token takes `thinking_s` emulated seconds."""
    stream = link.connect()
    try:
        await stream.send(request)
        opened = await stream.receive()
        if not isinstance(opened, Opened):
            raise OpenSledError(f"the server answered {opened} to an Open")
        talk = Talk(TenantRequest(tenant, len(opened.prompt_ids), time.perf_counter()), rounds, opened.hint)
        while not talk.asked.finished:
            tokens = drafter(len(talk.asked.tokens), talk.hint) if drafter else None
            if tokens:
                await asyncio.sleep(D * thinking_s * len(tokens))
            await _round(stream, talk, tokens)
        return talk
    finally:
        await stream.close()


async def _round(stream: GrpcStream, talk: Talk, tokens: Tokens | None) -> None:
    """A draft and its verdict; without a draft, or with an empty one, the next verdict."""
    started, asked = time.perf_counter(), talk.asked
    if tokens is not None:
        talk.counter += 1
        block = DraftBlock(asked.prompt + len(asked.tokens), tuple(map(DraftToken, tokens)))
        await stream.send(Draft(talk.counter, block))
    verdict = note(asked, await stream.receive())
    while tokens and verdict.answers != talk.counter and not asked.finished:
        verdict = note(asked, await stream.receive())
    talk.hint = verdict.hint
    ended = time.perf_counter()
    talk.rounds.append((ended, ended - started))
