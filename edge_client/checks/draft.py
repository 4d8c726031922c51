"""Does the draft model load, speak the server's ids, and write fast enough."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from edge_client.checks.finding import Finding, fail, ok, warn
from edge_client.checks.machine import model_bytes
from edge_client.checks.server import ServerReport
from edge_client.config import LinkConfig
from edge_client.drafters.threads import draft_threads
from edge_client.stop import UNADVISED
from opensled.errors import BY_CODE, NotFound, OpenSledError, VocabularyMismatch
from opensled.messages import ModelInfo
from opensled.store import model_path

LOAD_SECONDS = 15.0  # for a model to be read from a slow card
MODELLESS = ("none", "lookup")  # drafters without a model
ACCEPTANCE = 0.7  # assumed for the estimate; a draft of the target's own family reaches 0.5 to 0.9
READING = 5.0  # tokens/s below which an answer comes slower than people read
# Processor features (as /proc/cpuinfo names them) that make llama.cpp several times faster, and its own names.
FEATURES = {"avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8"}
REBUILD = "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
CUDA_DEVICES = ("/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu")  # a graphics card; a Jetson

Steps = list[dict[str, Any]]


async def check_draft(config: LinkConfig, server: Awaitable[ServerReport]) -> list[Finding]:
    """The model is loaded while the server is asked; what needs both comes last."""
    problem = _missing(config)
    if problem:
        return [problem]
    if config.drafter in MODELLESS:
        return [ok("draft model", f"--drafter {config.drafter} needs none")]
    threads = draft_threads(config.threads)
    arguments = [
        sys.executable,
        "-m",
        "edge_client.checks.probe",
        config.drafter,
        config.draft_model,
        str(threads),
    ]
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        report = await server
        steps, errors = await _steps(process, report.info)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return _findings(config, steps, report, process.returncode or 0, errors)


def _missing(config: LinkConfig) -> Finding | None:
    if config.drafter in MODELLESS or ":" in config.drafter:
        return None
    try:
        model_path(config.draft_model)
    except NotFound as error:
        return fail("draft model", str(error), "opensled models list", NotFound)
    return None


async def _steps(process: asyncio.subprocess.Process, info: ModelInfo | None) -> tuple[Steps, str]:
    """The steps that the probe got through, and the last line it complained with."""
    assert process.stdin and process.stdout and process.stderr
    steps: Steps = []

    async def read() -> str:
        assert process.stdout and process.stderr
        async for line in process.stdout:
            with contextlib.suppress(ValueError):  # a native library may print lines of its own
                step = json.loads(line)
                if isinstance(step, dict) and "step" in step:
                    steps.append(step)
        complaints = (await process.stderr.read()).decode("utf-8", "replace").strip().splitlines()
        await process.wait()
        return complaints[-1] if complaints else ""

    with contextlib.suppress(ConnectionError):  # it died before it asked
        process.stdin.write(_target(info))
        await process.stdin.drain()
    try:
        return steps, await asyncio.wait_for(read(), LOAD_SECONDS)
    except asyncio.TimeoutError:
        return steps, f"no end within {LOAD_SECONDS:g} s"


def _target(info: ModelInfo | None) -> bytes:
    names = ("model_id", "vocab_size", "fingerprint")
    facts = {name: getattr(info, name) for name in names} if info else None
    return json.dumps(facts).encode() + b"\n"


def _findings(
    config: LinkConfig, steps: Steps, report: ServerReport, code: int, complaint: str
) -> list[Finding]:
    told = {step["step"]: step for step in reversed(steps)}  # of two speeds the first
    findings = [_loaded(config, told)] if "loaded" in told else []
    if "build" in told:
        findings.append(check_build(told["build"], _cpu_flags(), _has_cuda()))
    if "error" in told:
        kind, reason = BY_CODE.get(told["error"]["code"], OpenSledError), told["error"]["reason"]
        return [*findings, fail("draft model", reason, "choose another --draft-model or --drafter", kind)]
    if code:
        return [*findings, _died(config, code, complaint)]
    if "vocabulary" in told:
        findings.append(_vocabulary(told["vocabulary"]["problem"]))
    speeds = {
        step["threads"]: step["seconds"] for step in steps if step["step"] == "speed" and step["seconds"]
    }
    return findings + check_speed(speeds, draft_threads(config.threads)) + _plan(config, speeds, report)


def _loaded(config: LinkConfig, told: dict[str, dict[str, Any]]) -> Finding:
    size = f", {count / 1e6:,.1f} MB" if (count := model_bytes(config)) else ""
    return ok("draft model", f"{told['loaded']['name']}{size}, loaded in {told['loaded']['seconds']:.1f} s")


def _died(config: LinkConfig, code: int, complaint: str) -> Finding:
    if code == -signal.SIGILL:
        return fail(
            "draft model",
            "llama.cpp was built for another processor: illegal instruction",
            f'CMAKE_ARGS="-DGGML_NATIVE=ON" {REBUILD}',
        )
    if code == -signal.SIGKILL:
        cause = complaint or "killed, probably for want of memory"
        return fail("draft model", cause, "use a smaller --draft-model, or --drafter lookup")
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return fail(
        "draft model",
        f"trying it failed ({name}): {complaint or 'no message'}",
        f"reinstall the runtime: {REBUILD}"
        if config.drafter == "llamacpp"
        else f'pip install --force-reinstall "opensled[{config.drafter}]"',
    )


def check_build(build: dict[str, Any], cpu: set[str], has_cuda: bool) -> Finding:
    """What the processor could do, and llama.cpp was not built to use."""
    missing = [
        name for flag, name in FEATURES.items() if flag in cpu and f"{name} = 1" not in build["features"]
    ]
    if missing:
        return warn(
            "llama.cpp",
            f"built without {', '.join(missing)}, which this processor has: drafting is slower than it need be",
            f'CMAKE_ARGS="-DGGML_NATIVE=ON" {REBUILD}',
        )
    if has_cuda and not build["gpu"]:
        return warn(
            "llama.cpp",
            "built without CUDA, and this machine has an NVIDIA GPU",
            f'CMAKE_ARGS="-DGGML_CUDA=on" {REBUILD}',
        )
    features = [
        part.split("=")[0].split(":")[-1].strip() for part in build["features"].split("|") if "= 1" in part
    ]
    return ok(
        "llama.cpp", f"{' '.join(features)}; {'uses a GPU' if build['gpu'] else 'no GPU support compiled in'}"
    )


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    flags = [line.partition(":")[2] for line in lines if line.lower().startswith(("flags", "features"))]
    return set(flags[0].split()) if flags else set()


def _has_cuda() -> bool:
    return any(Path(device).exists() for device in CUDA_DEVICES)


def _vocabulary(problem: str) -> Finding:
    if problem:
        return fail(
            "vocabulary", problem, "choose a --draft-model of the target's family", VocabularyMismatch
        )
    return ok("vocabulary", "draft and target share it")


def check_speed(speeds: dict[int, float], threads: int) -> list[Finding]:
    """`speeds`: seconds per draft token by number of threads."""
    if threads not in speeds:
        return []
    detail = f"{1 / speeds[threads]:,.0f} tokens/s with {threads} thread{'s' * (threads > 1)}"
    one = speeds.get(1, speeds[threads])
    if one < 0.9 * speeds[threads]:
        return [
            warn(
                "draft speed",
                f"{detail}, but {1 / one:,.0f} with one: the threads wait for each other",
                "--threads 1",
            )
        ]
    if 1 / speeds[threads] < READING:
        return [warn("draft speed", detail, "use a smaller or more strongly quantized --draft-model")]
    return [ok("draft speed", detail)]


def _plan(config: LinkConfig, speeds: dict[int, float], report: ServerReport) -> list[Finding]:
    seconds = speeds.get(draft_threads(config.threads))
    if not seconds or report.round_trip is None or report.info is None:
        return []
    length = min(config.draft_length or UNADVISED, report.info.limits.max_draft)
    return [check_plan(length, seconds, report.round_trip)]


def check_plan(length: int, draft_seconds: float, round_trip: float) -> Finding:
    """What round trip and draft speed (seconds per token) make of blocks of `length` tokens.

    A round commits (1 - a^(k+1)) / (1 - a) tokens and takes k drafts and one round trip, and the server's step on top.
    """
    drafting = length * draft_seconds
    round_seconds = drafting + round_trip
    tokens = (1 - ACCEPTANCE ** (length + 1)) / (1 - ACCEPTANCE)
    rate = tokens / round_seconds
    detail = (
        f"{length} draft tokens take {1000 * drafting:.1f} ms and the link {1000 * round_trip:.1f} ms: at most "
        f"{rate:,.0f} tokens/s at {ACCEPTANCE:.0%} acceptance, less the server's own steps"
    )
    if rate < READING:
        return warn("draft length", detail, "a smaller draft model, a nearer server, or --drafter none")
    if round_trip > 2 * drafting:
        detail += "; the link is most of a round, so that longer blocks cost little"
    elif drafting > 2 * round_trip and length > 2:
        detail += "; drafting is most of a round, so that shorter blocks may be faster"
    return ok("draft length", detail)
