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
    steps, said = Steps(), list[str]()
    try:
        await asyncio.wait_for(_read(process, steps, said), seconds)
    except asyncio.TimeoutError:
        said.append(f"no end within {seconds:g} s")
    finally:
        if process.returncode is None:
            process.kill()
        code = await process.wait()
    return steps, code, said


async def _read(process: Process, steps: Steps, said: list[str]) -> None:
    """Fill `steps`, and `said` with the lines of its standard error, until it ends."""
    assert process.stdout and process.stderr
    async for line in process.stdout:
        with contextlib.suppress(ValueError):  # a native library may print lines of its own
            step = json.loads(line)
            if isinstance(step, dict) and "step" in step:
                steps.append(step)
    said += (await process.stderr.read()).decode("utf-8", "replace").strip().splitlines()
    await process.wait()


def tell(step: str, **facts: Any) -> None:
    """What the process says to the doctor: one step."""
    print(json.dumps({"step": step, **facts}), flush=True)
