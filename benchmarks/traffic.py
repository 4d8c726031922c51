"""What an observer of encrypted frames learns of the prompts, and what it costs to hide it (--pad-frames)."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from benchmarks.link_overhead import NO_DELAY
from benchmarks.program import say
from benchmarks.traffic_attack import recognised
from benchmarks.traffic_traces import DEVICE, SERVER, Answered, watched_devices
from opensled_testbed.prompts import Chat, heldout_chats

COMBINATIONS = {"none": (), "frames": ("--pad-frames",)}
LINK = "wifi-good"  # the emulated one
TEMPERATURE = 0.3
FOLDS = 6  # each of them trains on five sixths of the repeats

Answers = dict[str, list[list[Answered]]]  # combination -> repeats -> prompts


def measure(quick: bool) -> Figure:
    """Percent of the prompts that the attack recognises; costs are among the facts. Needs scikit-learn."""
    prompts, repeats, max_tokens = (4, FOLDS, 8) if quick else (50, 24, 24)
    bodies = [body(chat, max_tokens) for chat in chats(prompts)]
    with tempfile.TemporaryDirectory() as folder:
        nothing = Path(folder) / "none.toml"
        nothing.write_text(NO_DELAY)
        answers = asyncio.run(ask_all(str(nothing), bodies, repeats))
    emulated = asyncio.run(ask_all(LINK, bodies[:10], 1 if quick else 4))
    return Figure(
        title="Traffic analysis",
        unit="% of prompts recognised",
        more_is_better=False,
        compared=(
            f"A random forest tells from sizes, times and directions of what passes between a device and its server "
            f"(TCP payload, read by a relay without delay) which of {prompts} prompts was asked, at temperature "
            f"{TEMPERATURE}. It is trained on {repeats - repeats // FOLDS} answers of each prompt and asked about "
            f"{repeats // FOLDS} others; a sample is one of {FOLDS} such divisions. Chance is {100 / prompts:g} %. The "
            "combinations of flags are devices that ask one server at the same time; Open is padded with the frames. "
            f"`facts` has their cost on loopback and on the emulated link {LINK}."
        ),
        loses=("A busy machine sends late: what delays a frame may be seen."),
        samples={name: recognised(each, FOLDS) for name, each in answers.items()},
        facts={
            "prompts": prompts,
            "chance, %": 100 / prompts,
            "max_tokens": max_tokens,
            "server": " ".join(SERVER),
            "device": " ".join(DEVICE),
            "cost on loopback (real)": costs(answers),
            f"cost on {LINK} (emulated)": costs(emulated),
        },
    )


def chats(count: int) -> list[Chat]:
    """Held-out chats of all tasks in turns."""
    pools = heldout_chats()
    return [pools[number % len(pools)][number // len(pools)] for number in range(count)]


def body(chat: Chat, max_tokens: int) -> dict[str, Any]:
    return {"model": "tiny", "messages": chat, "max_tokens": max_tokens, "temperature": TEMPERATURE}


async def ask_all(link: str, bodies: Sequence[dict[str, Any]], repeats: int) -> Answers:
    """Every prompt of every repeat, by one device of each combination at the same time; one repeat before warms up."""
    answers: Answers = {name: [] for name in COMBINATIONS}
    async with watched_devices(COMBINATIONS, link) as devices:
        for repeat in range(repeats + 1):
            say(f"traffic, {Path(link).stem}: repeat {repeat} of {repeats}")
            turns = [
                await asyncio.gather(*(device.answer(number, each) for device in devices.values()))
                for number, each in enumerate(bodies)
            ]
            if repeat:
                for name, done in zip(devices, zip(*turns)):
                    answers[name].append(list(done))
    return answers


def costs(answers: Mapping[str, Sequence[Sequence[Answered]]]) -> dict[str, dict[str, float]]:
    """Of each combination: bytes a token, and medians over the answers of speed and times."""
    return {name: _cost([each for repeat in repeats for each in repeat]) for name, repeats in answers.items()}


def _cost(answers: Sequence[Answered]) -> dict[str, float]:
    return {
        "bytes/token": round(sum(each.bytes for each in answers) / sum(each.tokens for each in answers), 1),
        "tokens/s for the reader": round(
            statistics.median(each.tokens / each.seconds for each in answers), 1
        ),
        "s for the reader": round(statistics.median(each.seconds for each in answers), 3),
        "s on the wire": round(statistics.median(each.lasted for each in answers), 3),
        "tokens": statistics.median(each.tokens for each in answers),
    }
