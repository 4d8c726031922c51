"""Sessions held at a pace, real: `opensled serve` over two pools of this machine's memory, devices over gRPC. A copy
of one text takes a stated share of the time in which its prompt is computed.

Devices draft what the target would write, some of it wrong, after a fixed time: what they draft with is no part of it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from benchmarks.kv_tiers_engine import BYTES_S
from benchmarks.kv_tiers_simulated import ACCEPTANCE, DRAFT, HELD
from benchmarks.program import say
from edge_client.link import Endpoint, Link
from opensled.errors import OpenSledError
from opensled.messages import Draft, DraftBlock, DraftToken, Failure, Open, SamplingParams, Verdict
from opensled.scrape import Sample, scrape
from opensled.store import heldout_path, model_path
from opensled.tokenizer import TargetTokenizer
from opensled_testbed.processes import QUIET, Process, free_port

PROMPT, ANSWER = 480, 160  # tokens
FIT = 4  # sessions whose KV fits
AWAY_S = 1.0  # from a verdict to the draft that follows
SETTLE_S, WINDOW_S = 4.0, 12.0  # after the last prompt is read, and what is measured then
TRIED = (4, 12, 16)  # sessions
PACES = (0.5, 1.0, 1.5)  # tokens/s
BLOCK_BYTES = 16 * 5120  # of the tiny target in float32: 5 layers, 2 heads of 64
SERVE = (
    *("serve", "--engine", "benchmarks.kv_tiers_engine:load", "--model", "tiny", "--dtype", "float32"),
    *("--numerics", "fast", "--threads", "1", "--policy", "fcfs", "--draft-wait", "3600"),
    *("--listen", "127.0.0.1:0", *QUIET),
)


class Contender(NamedTuple):
    """A server; `share`: seconds of a copy of one text over those of computing its prompt, 0 = one tier."""

    name: str
    share: float


CONTENDERS = (
    Contender("one tier", 0.0),
    Contender("two tiers, copies 1/12 of computing", 1 / 12),
    Contender("two tiers, copies as slow as computing", 1.0),
)


class Setup(NamedTuple):
    """What all contenders have in common."""

    prompts: Sequence[tuple[int, ...]]
    answers: Sequence[tuple[int, ...]]  # what the target writes
    prompt_s: float  # to compute one prompt alone


def measure(quick: bool) -> dict[str, Any]:
    """All contenders at each number of sessions, in turns."""
    tried = (2,) if quick else TRIED
    setup = _setup(max(tried))
    rows: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in CONTENDERS}
    for users in tried:
        for contender in CONTENDERS[:2] if quick else CONTENDERS:
            row = _measured(contender, users, setup, 1.0 if quick else WINDOW_S)
            rows[contender.name].append(row)
            say(f"{contender.name}: {row}")
    return {
        "label": "real processes, injected copy time",
        "prompt": PROMPT,
        "away_s": AWAY_S,
        "sessions_that_fit": FIT,
        "prompt_s": round(setup.prompt_s, 3),
        "rows": rows,
        "held": {
            name: {
                f"{pace:g}": max([row["sessions"] for row in of if _has(row, pace)], default=0)
                for pace in PACES
            }
            for name, of in rows.items()
        },
    }


def _has(row: dict[str, Any], pace: float) -> bool:
    return bool(row["rate_of_the_slowest_held"] >= pace)


def _setup(users: int) -> Setup:
    """Answers, and how long a prompt takes, by a server with memory for all."""
    prompts = _prompts(users)
    with Process((*SERVE, "--kv-tokens", "20000"), environment={BYTES_S: "1e12"}) as server:
        address = server.wait_ready()
        asyncio.run(_texts(address, prompts[:1]))
        began = time.monotonic()
        asyncio.run(_texts(address, [prompts[0][::-1]], 1))
        prompt_s = time.monotonic() - began
        return Setup(prompts, asyncio.run(_texts(address, prompts)), prompt_s)


def _prompts(count: int) -> list[tuple[int, ...]]:
    """Each from another place of the bundled tasks."""
    tokenizer = TargetTokenizer((model_path("tiny") / "tokenizer.json").read_bytes())
    text = " ".join(json.dumps(json.loads(line)) for line in heldout_path().read_text().splitlines()[:200])
    ids = tuple(tokenizer.encode(text))
    return [ids[number * 97 : number * 97 + PROMPT] for number in range(count)]


async def _texts(
    address: str, prompts: Sequence[tuple[int, ...]], tokens: int = ANSWER
) -> list[tuple[int, ...]]:
    link = Link(Endpoint(address))

    async def one(prompt: tuple[int, ...]) -> tuple[int, ...]:
        stream, found = link.connect(), list[int]()
        await stream.send(Open(prompt, _params(tokens)))
        while len(found) < tokens:
            message = await stream.receive()
            if isinstance(message, Failure):
                raise message.error()
            if isinstance(message, Verdict):
                found += message.tokens
        await stream.close()
        return tuple(found)

    try:
        return [await one(prompt) for prompt in prompts]
    finally:
        await link.close()


def _params(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


def _measured(contender: Contender, users: int, setup: Setup, window_s: float) -> dict[str, Any]:
    kv_tokens, port = FIT * (PROMPT + 3 * 16), free_port()
    bus = BLOCK_BYTES * PROMPT / 16 / (setup.prompt_s * contender.share) if contender.share else 1e12
    host = ("--kv-host-tokens", "20000") if contender.share else ()
    words = (*SERVE, "--kv-tokens", str(kv_tokens), "--metrics", f"127.0.0.1:{port}", *host)
    with Process(words, environment={BYTES_S: str(bus)}) as server:
        return asyncio.run(_rates(server.wait_ready(), f"127.0.0.1:{port}", users, setup, window_s))


async def _rates(address: str, port: str, users: int, setup: Setup, window_s: float) -> dict[str, Any]:
    link = Link(Endpoint(address))
    devices = [_Device(link, setup, number) for number in range(users)]
    running = [asyncio.ensure_future(device.run()) for device in devices]
    try:
        deadline = time.monotonic() + users * 4 * setup.prompt_s + SETTLE_S
        while time.monotonic() < deadline and not all(device.got for device in devices):
            await asyncio.sleep(0.05)
        await asyncio.sleep(SETTLE_S)
        before, began = [device.got for device in devices], time.monotonic()
        first = await asyncio.to_thread(scrape, port)
        await asyncio.sleep(window_s)
        seconds = time.monotonic() - began
        last = await asyncio.to_thread(scrape, port)
        rates = sorted((device.got - was) / seconds for device, was in zip(devices, before))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        with suppress(Exception):
            await link.close()
    return {
        "sessions": users,
        "rate_of_the_slowest_held": round(rates[int((1 - HELD) * users)], 3),
        "tokens_s": round(sum(rates), 2),
        "wrong_tokens": sum(device.wrong for device in devices),
        **{name: _change(first, last, name, *label) for name, *label in COUNTED},
    }


COUNTED = (
    ("preemptions_total",),
    ("kv_restored_positions_total",),
    ("positions_computed_total",),
    ("kv_swaps_total", "out"),
)


def _change(first: Sample, last: Sample, name: str, *label: str) -> float:
    return last.get(name, *label) - first.get(name, *label)


class _Device:
    """Drafts after each verdict that answers its draft."""

    def __init__(self, link: Link, setup: Setup, number: int) -> None:
        self._link, self._prompt, self._answer = link, setup.prompts[number], setup.answers[number]
        self._chance = random.Random(number)
        self.got = 0  # tokens
        self.wrong = 0  # of them, those that the target would not have written alone

    async def run(self) -> None:
        stream = self._link.connect()
        await stream.send(Open(self._prompt, _params(ANSWER)))
        drafting: asyncio.Task[None] | None = None
        counter = 0
        while self.got < ANSWER:
            message = await stream.receive()
            if isinstance(message, Failure):
                raise message.error()
            if not isinstance(message, Verdict):
                continue
            begin = message.base - len(self._prompt)
            self.wrong += sum(
                one != two
                for one, two in zip(message.tokens, self._answer[begin : begin + len(message.tokens)])
            )
            self.got = max(self.got, begin + len(message.tokens))
            if message.answers == counter and (drafting is None or drafting.done()):
                counter += 1
                drafting = asyncio.ensure_future(self._draft(stream, counter))

    async def _draft(self, stream: Any, counter: int) -> None:
        await asyncio.sleep(AWAY_S)
        place, ids = self.got, list[int]()
        for right in self._answer[place : place + DRAFT]:
            fits = self._chance.random() < ACCEPTANCE
            ids.append(right if fits else right + 1 if right < 100 else right - 1)
            if not fits:
                break
        block = DraftBlock(len(self._prompt) + place, tuple(map(DraftToken, ids)))
        with suppress(OpenSledError):  # the measurement is over
            await stream.send(Draft(counter, block))
