"""A check in a process of its own: native code that crashes or hangs must not end the doctor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from typing import Any

Steps = list[dict[str, Any]]


async def run_module(module: str, *arguments: str, seconds: float) -> tuple[Steps, int, list[str]]:
    """What `python -m MODULE ARGUMENTS` tells: its steps, its exit code, and the lines of its standard error.

    A process that takes longer than `seconds` is ended, and has told what it has told so far.
    """
    command = [sys.executable, "-m", module, *arguments]
    own = {**os.environ, "PYTHONSAFEPATH": "1"}  # no file of the current folder stands for a module
    process = await create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=own)
    steps, complaints, late = Steps(), bytearray(), list[str]()
    try:
        reading = asyncio.gather(_read_steps(process, steps), _read_complaints(process, complaints))
        await asyncio.wait_for(reading, seconds)
        await asyncio.wait_for(process.wait(), seconds)
    except asyncio.TimeoutError:
        late = [f"no end within {seconds:g} s"]
    finally:
        if process.returncode is None:
            process.kill()
        code = await process.wait()
    return steps, code, complaints.decode("utf-8", "replace").strip().splitlines() + late


async def _read_steps(process: Process, steps: Steps) -> None:
    assert process.stdout
    async for line in process.stdout:
        with contextlib.suppress(ValueError):  # a native library may print lines of its own
            step = json.loads(line)
            if isinstance(step, dict) and "step" in step:
                steps.append(step)


async def _read_complaints(process: Process, complaints: bytearray) -> None:
    assert process.stderr
    while piece := await process.stderr.read(1 << 16):
        complaints += piece


def tell(step: str, **facts: Any) -> None:
    """What the process says to the doctor: one step."""
    print(json.dumps({"step": step, **facts}), flush=True)
