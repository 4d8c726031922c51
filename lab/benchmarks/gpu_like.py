"""Share of an accelerator's time that the service uses: a target whose step only sleeps, outside of the GIL.

    python -m lab.benchmarks.gpu_like [--policy goodput] [--drafts] [--quick] [STREAMS ...]

A step lasts STEP_MS and ROW_US for each row. The server runs on the first core and the streams on the second. Without
the server's own drafter: the canned text repeats one id for ever, so lookup would always be right.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import grpc

from lab.benchmarks.null_engine import CONTEXT, NullEngine
from lab.benchmarks.program import CORES, exit_code, parser_of, table
from lab.benchmarks.rounds import DRAFT, METHOD, PROMPT, begin, draft_frame, encode, leave, next_verdict
from lab.testbed.processes import Process
from opensled.core.messages import Open, SamplingParams
from opensled.models.store import model_path
from verify_server.engine.base import Scores, Segment
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.text.hf_text import HFText

STEP_MS, ROW_US = 7.0, 10.0  # of an 8B model on an H100 by a fast engine


class SleepingEngine(NullEngine):
    """The null target, as slow as an accelerator."""

    def forward(self, segments: Sequence[Segment]) -> Scores:
        time.sleep(step_s(sum(len(segment.tokens) for segment in segments)))
        return super().forward(segments)


def step_s(rows: int) -> float:
    """Seconds of a step."""
    return STEP_MS / 1e3 + rows * ROW_US / 1e6


def load(config: ServeConfig) -> ServedModel:
    """The sleeping target, with the tokenizer of the model that `--model` names."""
    text = HFText(model_path(config.model))
    return ServedModel("null", SleepingEngine(text.vocab_size), text)


async def verdicts_per_s(address: str, streams: int, drafts: bool, seconds: float) -> float:
    """Verdicts that `streams` streams read in a second, which draft in every round or only read."""
    async with grpc.aio.insecure_channel(address) as channel:
        method = channel.stream_stream(METHOD)
        calls = [method() for _ in range(streams)]
        if drafts:
            places = await asyncio.gather(*map(begin, calls))
            end = time.perf_counter() + seconds
            counts = await asyncio.gather(*(_draft(call, *place, end) for call, place in zip(calls, places)))
            await asyncio.gather(*map(leave, calls))
            return sum(counts) / seconds
        await asyncio.gather(*map(_listen, calls))
        end = time.perf_counter() + seconds
        counts = await asyncio.gather(*(_read(call, end) for call in calls))
        for call in calls:
            call.cancel()
        return sum(counts) / seconds


async def _listen(call: Any) -> None:
    await call.write(encode(Open(PROMPT, SamplingParams(temperature=0, max_tokens=CONTEXT))))
    await call.done_writing()
    await call.read()


async def _read(call: Any, end: float) -> int:
    count = 0
    while time.perf_counter() < end:
        await call.read()
        count += 1
    return count


async def _draft(call: Any, counter: int, base: int, end: float) -> int:
    count = 0
    while time.perf_counter() < end:
        counter += 1
        await call.write(draft_frame(counter, base))
        verdict = await next_verdict(call)
        while verdict.answers != counter:
            base = verdict.base + len(verdict.tokens)
            verdict = await next_verdict(call)
        base, count = verdict.base + len(verdict.tokens), count + 1
    return count


def main(argv: list[str] | None = None) -> int:
    parser = parser_of("gpu_like", __doc__)
    parser.add_argument("streams", nargs="*", type=int, metavar="STREAMS", help="default: 1 16 64 128 256")
    parser.add_argument("--policy", default="goodput", help="default %(default)s")
    parser.add_argument(
        "--drafts", action="store_true", help="rounds of four drafts, all accepted (policy fcfs)"
    )
    parser.add_argument("--quick", action="store_true", help="a short run that only shows that it works")
    given = parser.parse_args(argv)
    sizes = given.streams or ([1] if given.quick else [1, 16, 64, 128, 256])
    return exit_code(lambda: _measure(sizes, given.policy, given.drafts, 0.2 if given.quick else 6.0))


def _measure(sizes: Sequence[int], policy: str, drafts: bool, seconds: float) -> int:
    serve = (
        "serve",
        "--engine",
        "lab.benchmarks.gpu_like:load",
        "--model",
        "tiny",
        "--listen",
        "127.0.0.1:0",
    )
    cells = []
    os.sched_setaffinity(0, {min(CORES)})  # the server's threads inherit it
    with Process(
        (*serve, "--policy", policy, "--server-drafter", "none", "--max-sessions", "2000"), isolated=True
    ) as server:
        address = server.wait_ready()
        os.sched_setaffinity(0, {max(CORES)})
        for streams in sizes:
            rate = asyncio.run(verdicts_per_s(address, streams, drafts, seconds))
            ideal = streams / step_s(streams * (len(DRAFT) + 1 if drafts else 1))
            cells.append((str(streams), f"{rate:.0f}", f"{ideal:.0f}", f"{rate / ideal:.2f}"))
    os.sched_setaffinity(0, CORES)
    print("\n".join(table(("streams", "verdicts/s", "ideal", "share of the accelerator"), cells)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
