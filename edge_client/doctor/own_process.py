"""A check in a process of its own: native code that crashes or hangs must not end the doctor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

Steps = list[dict[str, Any]]


@asynccontextmanager
async def start_module(module: str, *arguments: str) -> AsyncIterator[Process]:
    """`python -m MODULE ARGUMENTS`, which does not outlive the block."""
    command = [sys.executable, "-m", module, *arguments]
    pipe = asyncio.subprocess.PIPE
    own = {**os.environ, "PYTHONSAFEPATH": "1"}  # no file of the current folder stands for a module
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=own)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def steps_of(process: Process, facts: object, seconds: float) -> tuple[Steps, str]:
    """Give it `facts` as one line of JSON; the steps that it tells, and the last line of its standard error.

    A process that takes longer than `seconds` has told what it has told so far.
    """
    steps: Steps = []
    assert process.stdin
    with contextlib.suppress(ConnectionError):  # it ended before it read its input
        process.stdin.write(json.dumps(facts).encode() + b"\n")
        await process.stdin.drain()
    try:
        return steps, await asyncio.wait_for(_read(process, steps), seconds)
    except asyncio.TimeoutError:
        return steps, f"no end within {seconds:g} s"


async def _read(process: Process, steps: Steps) -> str:
    """Fill `steps`; the last line of its standard error."""
    assert process.stdout and process.stderr
    async for line in process.stdout:
        with contextlib.suppress(ValueError):  # a native library may print lines of its own
            step = json.loads(line)
            if isinstance(step, dict) and "step" in step:
                steps.append(step)
    complaints = (await process.stderr.read()).decode("utf-8", "replace").strip().splitlines()
    await process.wait()
    return complaints[-1] if complaints else ""


def tell(step: str, **facts: Any) -> None:
    """What the process says to the doctor: one step."""
    print(json.dumps({"step": step, **facts}), flush=True)
