"""Verify rounds per second of the real service over a null engine, against a raw gRPC echo of the same messages.

Service and echo run in processes of their own; a third one sends ready-made bytes to either, in the same way.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import grpc

from lab.benchmarks.figure import Comparison, Figure, in_turns
from lab.benchmarks.null_engine import CANNED, CONTEXT
from lab.benchmarks.program import SPAWN, end_with_parent, spawned
from lab.testbed.processes import Process
from opensled.core.errors import OpenSledError
from opensled.core.messages import (
    Cancel,
    Draft,
    DraftBlock,
    DraftToken,
    Open,
    Prefill,
    SamplingParams,
    Verdict,
)
from opensled.wire import codec
from verify_server.start.command import run

PROMPT = tuple(range(10, 42))
DRAFT = (DraftToken(CANNED),) * 4  # the null target accepts all of it
COMMITTED = len(DRAFT) + 1  # tokens a round commits
METHOD = f"/{codec.SERVICE_NAME}/Sequence"
# Never within a measurement: an unasked token between two rounds would not be a round.
SERVE = (
    *("serve", "--engine", "lab.benchmarks.null_engine:load", "--model", "tiny"),
    *("--listen", "127.0.0.1:0", "--draft-wait", "3600"),
)
POLICIES = {"service": "fcfs", "planned by goodput": "lab.benchmarks.null_engine:Weighed"}
REQUIRED = {16: 0.6}  # streams -> ratio


def measure(quick: bool) -> Figure:
    """Ratios at several numbers of streams."""
    streams, rounds, repeats = ((1, 16), 320, 2) if quick else ((1, 16, 64), 12_800, 7)
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        addresses = _services(stack) | {"echo": stack.enter_context(_echo())}
        pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=SPAWN, initializer=end_with_parent))
        for count in streams:

            def turn(name: str, count: int = count) -> float:
                work = (addresses[name], name == "echo", count, rounds // count)
                return pool.submit(_load, *work).result()

            contenders = {f"{name}, {count} streams": partial(turn, name) for name in addresses}
            samples.update(in_turns(contenders, repeats))
    return Figure(
        title="Verify rounds",
        unit="rounds/s",
        more_is_better=True,
        compared=(
            "`opensled serve` with an engine that answers canned ids (everything else is the product: gRPC service, "
            "manager, sessions, loop, engine thread, rule `match`), drafts of 4, all accepted, against a grpc.aio "
            "bidirectional echo of the same request bytes that parses nothing, on the same event loop: uvloop if the "
            "figure's libraries list it, else asyncio's own. One process each, and the client's. The service follows "
            "policy `fcfs`; *planned by goodput* pays for the default policy's plan of every step besides, without "
            "following it, for on a target that costs nothing that one would let devices rest."
        ),
        loses=(
            "A round is more than a message: it is parsed, planned, handed to the engine's thread and back, committed "
            "and written by another task. With one stream every round pays both thread hops alone."
        ),
        samples=samples,
        ratios=tuple(
            Comparison(
                f"{count} streams" + ("" if name == "service" else f", {name}"),
                f"{name}, {count} streams",
                f"echo, {count} streams",
                REQUIRED.get(count),
            )
            for name in POLICIES
            for count in streams
        ),
        facts={
            "rounds of a repeat": rounds,
            "draft tokens": len(DRAFT),
            "request bytes": len(draft_frame(2, 1000)),
        },
    )


def _services(stack: ExitStack) -> dict[str, str]:
    """HOST:PORT of a service with each of POLICIES."""
    servers = {
        name: stack.enter_context(Process((*SERVE, "--policy", policy), isolated=True))
        for name, policy in POLICIES.items()
    }
    return {name: server.wait_ready() for name, server in servers.items()}


# -- the echo's process -------------------------------------------------------------------------------------


@contextmanager
def _echo() -> Iterator[str]:
    """An echo in a process of its own; yields HOST:PORT."""
    here, there = SPAWN.Pipe()
    process = spawned(_serve_echo, there)
    try:
        yield f"127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


def _serve_echo(ready: Connection) -> None:
    run(_answer(ready))


async def _answer(ready: Connection) -> None:
    async def echo(requests: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    server = grpc.aio.server()
    handlers = {"Sequence": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(codec.SERVICE_NAME, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready.send(port)
    await server.wait_for_termination()


# -- the client's process -----------------------------------------------------------------------------------


def _load(address: str, is_echo: bool, streams: int, rounds: int) -> float:
    """Rounds per second over `streams` streams of `rounds` rounds each."""
    return asyncio.run(_talk(address, is_echo, streams, rounds))


async def _talk(address: str, is_echo: bool, streams: int, rounds: int) -> float:
    async with grpc.aio.insecure_channel(address) as channel:
        method = channel.stream_stream(METHOD)  # no serializers: bytes in, bytes out
        calls = [method() for _ in range(streams)]
        starts = [(1, len(PROMPT)) if is_echo else await begin(call) for call in calls]
        frames = [[draft_frame(n + 1 + i, base + COMMITTED * i) for i in range(rounds)] for n, base in starts]
        started = time.perf_counter()
        last = await asyncio.gather(*map(_converse, calls, frames))
        seconds = time.perf_counter() - started
        if not is_echo:
            _check(last, [base + COMMITTED * (rounds - 1) for _, base in starts])
            await asyncio.gather(*map(leave, calls))
    return streams * rounds / seconds


async def _converse(call: Any, frames: list[bytes]) -> bytes:
    reply = b""
    for frame in frames:
        await call.write(frame)
        reply = await call.read()
    return reply


async def leave(call: Any) -> None:
    """With a farewell: a session whose reader just vanishes is remembered, and would cost the next repeats time."""
    await call.write(encode(Cancel()))
    while await call.read() is not grpc.aio.EOF:
        pass


def draft_frame(counter: int, base: int) -> bytes:
    return encode(Draft(counter, DraftBlock(base, DRAFT)))


def encode(message: Open | Draft | Cancel) -> bytes:
    encoded: bytes = codec.encode_client(message).SerializeToString()
    return encoded


async def begin(call: Any) -> tuple[int, int]:
    """Open a sequence and draft until the server waits for this device; the last counter, the next base.

    Until the first draft arrives the server decodes by itself, so the first answers may be late or partial.
    """
    params = SamplingParams(temperature=0, max_tokens=CONTEXT)
    await call.write(encode(Open(PROMPT, params)))
    await call.read()
    counter, base, in_step = 0, len(PROMPT), 0
    while in_step < 2:  # one alone may be a draft that came too late, with an unasked token still to come
        counter += 1
        await call.write(draft_frame(counter, base))
        verdict = await next_verdict(call)
        while verdict.answers != counter:
            verdict = await next_verdict(call)
        whole = verdict.base == base and len(verdict.tokens) == COMMITTED
        in_step = in_step + 1 if whole else 0
        base = verdict.base + len(verdict.tokens)
    return counter, base


async def next_verdict(call: Any) -> Verdict:
    """The next one; what the service found of the prompt is no answer."""
    while isinstance(codec.server_message(reply := await call.read()), Prefill):
        pass
    return _decode(reply)


def _decode(reply: bytes) -> Verdict:
    message = codec.server_message(reply)
    if not isinstance(message, Verdict):
        raise OpenSledError(f"the service answered {message} instead of a verdict")
    return message


def _check(replies: list[bytes], bases: list[int]) -> None:
    """Every stream's last answer must be the whole last round: else fewer rounds ran than were counted."""
    for reply, base in zip(replies, bases):
        verdict = _decode(reply)
        if (verdict.base, verdict.num_accepted, len(verdict.tokens)) != (base, len(DRAFT), COMMITTED):
            raise OpenSledError(f"a round went wrong: {verdict} instead of all accepted at {base}")
