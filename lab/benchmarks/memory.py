"""Resident memory of the real processes: a device by drafter, and a server, idle and after work."""

import asyncio
import re
from contextlib import ExitStack
from pathlib import Path

import httpx

from lab.benchmarks.figure import Figure
from lab.testbed.client import stream_chat
from lab.testbed.processes import Process

DRAFTERS = ("lookup", "llamacpp", "onnx")
ANSWERS = 5  # of each device
SEQUENCES = 16  # at the same time, for the server


def measure(quick: bool) -> Figure:
    """Resident memory of real processes, when they are ready and after answers."""
    drafters, answers, tokens = (DRAFTERS[:1], 1, 16) if quick else (DRAFTERS, ANSWERS, 64)
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        server = _start(stack, "serve", "--model", "tiny", "--listen", "127.0.0.1:0", "--threads", "1")
        _note(samples, "server tiny, idle", server)
        for drafter in drafters:
            flags = ("--server", server.address, "--drafter", drafter, "--http", "127.0.0.1:0")
            edge = _start(stack, "edge", *flags, "--threads", "1")
            _note(samples, f"device {drafter}, idle", edge)
            asyncio.run(_ask(edge.address, answers, tokens, at_once=1))
            _note(samples, f"device {drafter}, after {answers} answers", edge)
        asyncio.run(_ask(edge.address, SEQUENCES, tokens, at_once=SEQUENCES))
        _note(samples, f"server tiny, after {SEQUENCES} sequences", server)
    return Figure(
        title="Resident memory",
        unit="MiB",
        more_is_better=False,
        compared=(
            "PSS (private pages and this process's share of common ones) and RSS of `opensled edge` and "
            "`opensled serve` as the kernel counts them, right after the ready line and after answers."
        ),
        loses=(
            "The server carries torch and transformers, which outweigh a tiny target by far; a device carries Python, "
            "gRPC and its API server even when it only looks up."
        ),
        samples=samples,
        facts={"answer tokens": tokens, "answers of a device": answers, "sequences at once": SEQUENCES},
    )


def _start(stack: ExitStack, *arguments: str) -> Process:
    process = stack.enter_context(Process(arguments, isolated=True))
    process.wait_ready()
    return process


def _note(samples: dict[str, list[float]], name: str, process: Process) -> None:
    for kind in ("Pss", "Rss"):
        samples[f"{name} ({kind.upper()})"] = [_resident(process.process.pid, kind)]


def _resident(pid: int, kind: str) -> float:
    """MiB of a process, "Pss" or "Rss"."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(rf"^{kind}:\s+(\d+) kB", text, re.MULTILINE)
    assert found, "the kernel's format has both"
    return int(found[1]) / 1024


async def _ask(address: str, answers: int, tokens: int, at_once: int) -> None:
    """Chats of different prompts over a device's API."""
    room = asyncio.Semaphore(at_once)

    async def chat(number: int) -> None:
        text = f"Write a short story about {number + 2} lamps and {number + 3} doors."
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        async with room:
            async for _ in stream_chat(http, {**body, "temperature": 0.8, "seed": number}):
                pass

    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=120, trust_env=False) as http:
        await asyncio.gather(*map(chat, range(answers)))
