"""A flood on one server, from a process of its own: `python -m lab.testbed.soak.floods KIND HOST:PORT`.

Reads the bearer token of its tenant from standard input. Prints how many messages or streams it sent, and what came of
them by code, as one JSON object.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count

from edge_client.link.link import Endpoint, GrpcStream, Link
from edge_client.link.moves import MAX_MOVES
from lab.testbed.soak.liar import SURE
from opensled.core.errors import OpenSledError
from opensled.core.messages import (
    ChatMessage,
    Draft,
    DraftBlock,
    DraftToken,
    Failure,
    Moved,
    Open,
    Opened,
    SamplingParams,
    ServerMessage,
    Verdict,
)

BESIDE = 8  # streams at the same time
TURNS = 20_000  # of a chat
SILENT = 400  # streams
WRONG = 2  # a draft token that no text has there
PATIENCE_S = 5.0  # for an answer
GREEDY = SamplingParams(temperature=0.0, max_tokens=100)
HELLO = Open((ChatMessage("user", "Tell me a story."),), GREEDY)


@dataclass
class Flood:
    """What one flood needs, and what came of it."""

    link: Link
    until: float  # time.monotonic()
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def on(self) -> bool:
        return time.monotonic() < self.until


async def stale_drafts(flood: Flood) -> None:
    """Drafts on a base that has passed, one after another."""
    stream, opened = await _opened(flood)
    reading = asyncio.ensure_future(_drain(stream))
    tokens = tuple(DraftToken(token) for token in range(1, 9))
    block = DraftBlock(len(opened.prompt_ids), tokens)
    number = 0
    try:
        while flood.on and not reading.done():
            number += 1
            await stream.send(Draft(number, block))
            flood.counts["sent"] += 1
    finally:
        reading.cancel()
        await stream.close()


async def sure_drafts(flood: Flood) -> None:
    """Wrong drafts of the full length on the newest text, of which each token is told to be as good as certain."""
    stream, opened = await _opened(flood)
    length = len(opened.prompt_ids)
    tokens = (DraftToken(WRONG, SURE),) * opened.limits.max_draft
    try:
        for number in count(1):
            await stream.send(Draft(number, DraftBlock(length, tokens)))
            flood.counts["sent"] += 1
            verdict = await _verdict(stream, number)
            length = verdict.base + len(verdict.tokens)
            if verdict.finish_reason or not flood.on:
                return
    finally:
        await stream.close()


async def wrong_tokens(flood: Flood) -> None:
    """Requests of a client that has no access."""
    flood.counts["sent"] += 1
    await _first(flood.link.connect(), HELLO)


async def empty_chats(flood: Flood) -> None:
    """Chats of thousands of empty turns."""
    chat = Open((ChatMessage("user", ""),) * TURNS, GREEDY)
    flood.counts["sent"] += 1
    await _first(flood.link.connect(), chat)


async def silent_streams(flood: Flood) -> None:
    """Streams that never say what they want."""
    streams = [flood.link.connect() for _ in range(SILENT // BESIDE)]
    flood.counts["sent"] += len(streams)
    try:
        await asyncio.sleep(max(0.0, flood.until - time.monotonic()))
    finally:
        for stream in streams:
            await stream.close()


FLOODS: dict[str, Callable[[Flood], Awaitable[None]]] = {
    "stale drafts": stale_drafts,
    "sure drafts": sure_drafts,
    "wrong tokens": wrong_tokens,
    "empty chats": empty_chats,
    "silent streams": silent_streams,
}


async def _opened(flood: Flood) -> tuple[GrpcStream, Opened]:
    """A sequence that is open, wherever the server sends this client."""
    request, address = HELLO, ""
    for _ in range(1 + MAX_MOVES):
        stream = flood.link.connect(address)
        answer = await _first(stream, request, keep=True)
        if isinstance(answer, Opened):
            return stream, answer
        await stream.close()
        if isinstance(answer, Moved):
            address = answer.address
    raise OpenSledError("the sequence is sent from one server to another")


async def _first(stream: GrpcStream, request: Open, keep: bool = False) -> ServerMessage:
    """The first message of the server; raises what it failed with."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await stream.send(request)
            answer = await stream.receive()
    except BaseException:
        await stream.close()
        raise
    if isinstance(answer, Failure):
        await stream.close()
        raise answer.error()
    if not keep:
        await stream.close()
    return answer


async def _verdict(stream: GrpcStream, number: int) -> Verdict:
    """The answer to draft `number`, or what ends the sequence before."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await stream.receive()
            if isinstance(answer, Failure):
                raise answer.error()
            if isinstance(answer, Verdict) and (answer.answers == number or answer.finish_reason):
                return answer


async def _drain(stream: GrpcStream) -> None:
    while not isinstance(await stream.receive(), Failure):
        continue


async def _again_and_again(kind: str, flood: Flood) -> None:
    while flood.on:
        try:
            await FLOODS[kind](flood)
        except OpenSledError as error:
            flood.counts[error.code] += 1
        except TimeoutError:
            flood.counts["no answer"] += 1


async def run(kind: str, address: str, token: str, seconds: float) -> dict[str, int]:
    """What was sent, and what came of it."""
    link = Link(Endpoint(address, "wrong" if kind == "wrong tokens" else token))
    flood = Flood(link, time.monotonic() + seconds)
    try:
        await asyncio.gather(*(_again_and_again(kind, flood) for _ in range(BESIDE)))
    finally:
        await link.close()
    return dict(flood.counts)


def main() -> int:
    """The command line; see the top of this file."""
    parser = argparse.ArgumentParser("python -m lab.testbed.soak.floods", description=__doc__)
    parser.add_argument("kind", choices=tuple(FLOODS))
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="how long it lasts")
    given = parser.parse_args()
    token = sys.stdin.read().strip()
    print(json.dumps(asyncio.run(run(given.kind, given.address, token, given.seconds))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
