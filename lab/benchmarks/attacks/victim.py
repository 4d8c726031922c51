"""An honest tenant's process: its readers read one answer after another, and note when tokens came and whether they are
right."""

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe
from typing import NamedTuple

from edge_client.link.link import Endpoint, GrpcStream, Link
from lab.benchmarks.attacks.connection import Peer
from lab.benchmarks.program import SPAWN, spawned
from opensled.core.errors import OpenSledError
from opensled.core.messages import Failure, Open, Opened, Prefill, SamplingParams, Verdict

TOKENS = 48  # of an answer
REQUEST = Open(
    "Tell me a story about two lamps.", SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
)
PATIENCE_S = 0.25  # at most, before a refused request is sent again
END_S = 20.0


class Arrival(NamedTuple):
    """So many tokens came to a reader."""

    at: float
    tokens: int
    reader: int


@dataclass
class Record:
    """What the readers met. Times in seconds on time.monotonic."""

    arrivals: list[Arrival] = field(default_factory=list)
    opened: list[tuple[float, float]] = field(default_factory=list)  # when, and after how long
    refused: list[float] = field(default_factory=list)  # when there was no place
    broken: list[tuple[float, str]] = field(default_factory=list)  # answers that ended by another error
    right: list[float] = field(default_factory=list)  # whole answers
    wrong: list[tuple[float, int]] = field(
        default_factory=list
    )  # tokens that the target alone does not write

    def rate(self, start: float, end: float) -> float:
        """Tokens/s between two moments."""
        return self.tokens(start, end) / (end - start)

    def tokens(self, start: float, end: float) -> int:
        return sum(each.tokens for each in self.arrivals if start <= each.at < end)

    def longest_stall(self, start: float, end: float) -> float:
        """Seconds between two arrivals of one reader at most; before its first one and after its last one, too."""
        readers = {each.reader for each in self.arrivals} or {0}
        return max(self._stall(reader, start, end) for reader in readers)

    def _stall(self, reader: int, start: float, end: float) -> float:
        own = (each.at for each in self.arrivals if each.reader == reader and start <= each.at < end)
        return max(later - earlier for earlier, later in pairwise([start, *own, end]))

    def wait(self, start: float, end: float) -> float | None:
        """Median seconds from a request to its `Opened`; None = none was opened."""
        waits = [took for at, took in self.opened if start <= at < end]
        return statistics.median(waits) if waits else None


class Victim:
    """A running process."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def record(self) -> Record:
        """Stop it, and read what it noted."""
        self._pipe.send("stop")
        if not self._pipe.poll(END_S):
            raise OpenSledError("the victim does not end; this machine is too busy to measure on")
        record: Record = self._pipe.recv()
        return record


@contextmanager
def victim(peer: Peer, core: int, readers: int, reference: tuple[int, ...]) -> Iterator[Victim]:
    """A process whose first reader has read a whole answer."""
    here, there = SPAWN.Pipe()
    process = spawned(_main, peer, core, readers, reference, there)
    try:
        if not here.poll(60) or here.recv() != "ready":
            raise OpenSledError("the victim got no answer before the attack")
        yield Victim(here)
    finally:
        process.kill()
        process.join()


def reference_text(peer: Peer) -> tuple[int, ...]:
    """What the target writes for the victim alone."""
    record = Record()

    async def one() -> tuple[int, ...]:
        link = _link(peer)
        try:
            return tuple(await _answer(link, record, 0))
        finally:
            await link.close()

    return asyncio.run(one())


def _link(peer: Peer) -> Link:
    return Link(Endpoint(peer.address, peer.token, peer.tls_ca is not None, peer.tls_ca))


def _main(peer: Peer, core: int, readers: int, reference: tuple[int, ...], pipe: Pipe) -> None:
    os.sched_setaffinity(0, {core})
    pipe.send(asyncio.run(_read_on(peer, readers, reference, pipe)))


async def _read_on(peer: Peer, readers: int, reference: tuple[int, ...], pipe: Pipe) -> Record:
    record, link = Record(), _link(peer)
    reading = [asyncio.ensure_future(_again(link, record, reader, reference)) for reader in range(readers)]
    while not record.right:
        await asyncio.sleep(0.05)
    pipe.send("ready")
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    await link.close()
    return record


async def _again(link: Link, record: Record, reader: int, reference: tuple[int, ...]) -> None:
    """Answer after answer until cancelled."""
    while True:
        try:
            text = await _answer(link, record, reader)
        except OpenSledError as error:
            record.broken.append((time.monotonic(), str(error)[:200]))
            await asyncio.sleep(PATIENCE_S)
            continue
        differing = sum(one != other for one, other in zip(text, reference))
        if differing:
            record.wrong.append((time.monotonic(), differing))
        elif text:
            record.right.append(time.monotonic())


async def _answer(link: Link, record: Record, reader: int) -> list[int]:
    """One whole answer; empty if it was refused."""
    stream, began = link.connect(), time.monotonic()
    try:
        await stream.send(REQUEST)
        opened = await stream.receive()
        if isinstance(opened, Failure) and opened.code == "overloaded":
            record.refused.append(time.monotonic())
            await asyncio.sleep(min(opened.retry_after, PATIENCE_S))
            return []
        if not isinstance(opened, Opened):
            raise OpenSledError(f"the server answered {opened}")
        now = time.monotonic()
        record.opened.append((now, now - began))
        return await _read(stream, len(opened.prompt_ids), record, reader)
    finally:
        await stream.close()


async def _read(stream: GrpcStream, prompt: int, record: Record, reader: int) -> list[int]:
    tokens: list[int] = []
    while True:
        while isinstance(verdict := await stream.receive(), Prefill):
            pass
        if not isinstance(verdict, Verdict):
            raise OpenSledError(f"the server answered {verdict}")
        news = verdict.tokens[prompt + len(tokens) - verdict.base :]
        tokens += news
        record.arrivals.append(Arrival(time.monotonic(), len(news), reader))
        if verdict.finish_reason:
            return tokens
