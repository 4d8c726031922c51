"""Checks whether the draft model loads, fits the target's vocabulary, and drafts fast enough."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from edge_client.device.config import DeviceConfig
from edge_client.device.known_drafts import HOW_TO_GET_ONE, without_model
from edge_client.doctor.crash import NATIVE, build_command, report_crash
from edge_client.doctor.finding import Finding, fail, ok, warn
from edge_client.doctor.machine import model_bytes
from edge_client.doctor.own_process import Steps, start_module, steps_of
from edge_client.doctor.server_checks import ServerReport
from edge_client.drafters import DRAFTERS, asks_server
from edge_client.drafters.threads import draft_threads, model_drafter
from opensled.core.errors import BY_CODE, NotFound, OpenSledError, VocabularyMismatch
from opensled.models.store import can_be_fetched, model_path

LOAD_SECONDS = 15.0  # to read a model from a slow memory card
READING = 5.0  # tokens/s; people read faster than a slower answer comes
# Processor features (as /proc/cpuinfo names them) that make llama.cpp several times faster, and its own names.
FEATURES = {"avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8"}
CUDA_DEVICES = ("/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu")  # a graphics card; a Jetson


async def check_draft(config: DeviceConfig, server: Awaitable[ServerReport]) -> list[Finding]:
    """The findings. The model loads while the server is asked; checks that need both come last."""
    if asks_server(config.drafter):
        # With it comes numpy, which may be broken: then the doctor says so
        from edge_client.doctor.draft_server import check_draft_server

        return await check_draft_server(config, server)
    if problem := _missing(config):
        return [problem]
    if not drafter_to_probe(config.drafter):
        return [ok("draft model", f"--drafter {config.drafter} needs none")]
    arguments = (drafter_to_probe(config.drafter), config.draft_model, str(_threads(config)))
    async with start_module("edge_client.doctor.probe", *arguments) as process:
        steps, complaint = await steps_of(process, _facts(await server), LOAD_SECONDS)
    return _findings(config, steps, process.returncode or 0, complaint)


def _threads(config: DeviceConfig) -> int:
    return draft_threads(config.threads, config.drafter, config.draft_model)


def _speeds(steps: Steps) -> dict[int, float]:
    """Seconds per draft token by number of threads."""
    speeds = (step for step in steps if step["step"] == "speed" and step["seconds"])
    return {step["threads"]: step["seconds"] for step in speeds}


def drafter_to_probe(drafter: str) -> str:
    """The drafter that the probe tries: of a chain the one with a model, or the user's own class; "" = none."""
    member = model_drafter(drafter)
    return member if member or drafter.partition(":")[0] in DRAFTERS.names() else drafter


def _missing(config: DeviceConfig) -> Finding | None:
    instead = without_model(config)
    if not config.draft_model and (model_drafter(config.drafter) or config.drafter == instead):
        return warn(
            "draft model", f"none fits the target and this installation: {instead} drafts", HOW_TO_GET_ONE
        )
    if not model_drafter(config.drafter):
        return None
    try:
        model_path(config.draft_model)
    except NotFound as error:
        pull = can_be_fetched(config.draft_model)
        remedy = f"opensled pull {config.draft_model}" if pull else "opensled models list"
        return fail("draft model", str(error), remedy, NotFound)
    return None


def _facts(server: ServerReport) -> dict[str, object] | None:
    """What the probe must know of the target."""
    if server.info is None:
        return None
    names = ("model_id", "vocab_size", "fingerprint", "eos_ids")
    facts = {name: getattr(server.info, name) for name in names}
    return {**facts, "tokenizer_json": server.tokenizer_json}


def _findings(config: DeviceConfig, steps: Steps, code: int, complaint: str) -> list[Finding]:
    told = {step["step"]: step for step in reversed(steps)}  # the first of two speeds
    library = told.get("library", {}).get("name", "")
    findings = [_report_load(config, told)] if "loaded" in told else []
    if "build" in told:
        findings.append(check_build(library, told["build"], _cpu_flags(), _has_cuda()))
    if "error" in told:
        kind, reason = BY_CODE.get(told["error"]["code"], OpenSledError), told["error"]["reason"]
        lacks_openmp = "install libgomp1" in reason
        remedy = (
            "sudo apt-get install libgomp1" if lacks_openmp else "choose another --draft-model or --drafter"
        )
        return [*findings, fail("draft model", reason, remedy, kind)]
    if code:
        return [*findings, report_crash(library, code, complaint)]
    if "vocabulary" in told:
        findings.append(_vocabulary(**told["vocabulary"]))
    return findings + check_speed(_speeds(steps), _threads(config))


def _report_load(config: DeviceConfig, told: dict[str, dict[str, Any]]) -> Finding:
    size = f", {count / 1e6:,.1f} MB" if (count := model_bytes(config)) else ""
    return ok("draft model", f"{told['loaded']['name']}{size}, loaded in {told['loaded']['seconds']:.1f} s")


def check_build(library: str, build: dict[str, Any], cpu: set[str], has_cuda: bool) -> Finding:
    """Whether the llama.cpp of `library` was built to use the features of this processor."""
    missing = [
        name for flag, name in FEATURES.items() if flag in cpu and f"{name} = 1" not in build["features"]
    ]
    if missing:
        return warn(
            "llama.cpp",
            f"built without {', '.join(missing)}, which this processor has: drafting is slower than it need be",
            build_command(library, NATIVE),
        )
    if has_cuda and not build["gpu"]:
        return warn(
            "llama.cpp",
            "built without CUDA, and this machine has an NVIDIA GPU",
            build_command(library, "-DGGML_CUDA=on"),
        )
    features = [
        part.split("=")[0].split(":")[-1].strip() for part in build["features"].split("|") if "= 1" in part
    ]
    gpu = "uses a GPU" if build["gpu"] else "no GPU support compiled in"
    return ok("llama.cpp", f"of {library}: {' '.join(features)}; {gpu}")


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    flags = [line.partition(":")[2] for line in lines if line.lower().startswith(("flags", "features"))]
    return set(flags[0].split()) if flags else set()


def _has_cuda() -> bool:
    return any(Path(device).exists() for device in CUDA_DEVICES)


def _vocabulary(problem: str, kind: str, words: str, **_: object) -> Finding:
    if problem:
        return fail(
            "vocabulary", problem, "choose a --draft-model of the target's family", VocabularyMismatch
        )
    if kind == "text":
        return warn("vocabulary", words, "a --draft-model of the target's family drafts better")
    return ok("vocabulary", words)


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
