"""Checks whether the draft model loads, how its library was built, and whether it drafts fast enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_client.device.config import DeviceConfig
from edge_client.doctor.crash import NATIVE, build_command, report_crash
from edge_client.doctor.finding import Finding, ok, report_error, warn
from edge_client.doctor.own_process import Steps, run_module
from edge_client.drafters import DRAFTERS
from edge_client.drafters.threads import model_drafter
from opensled.core.errors import UsageError, from_code

LOAD_SECONDS = 15.0  # to read a model from a slow memory card
READING = 5.0  # tokens/s; people read faster than a slower answer comes
# Processor features (as /proc/cpuinfo names them) that make llama.cpp several times faster, and its own names.
FEATURES = {"avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8"}
CUDA_DEVICES = ("/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu")  # a graphics card; a Jetson


async def check_draft(config: DeviceConfig, stands_in: bool = False) -> list[Finding]:
    """The findings on the draft model of `config`, which `choose_drafter` has completed.

    `stands_in`: without the library that it needs, another drafter stands in: the user named neither.
    """
    drafter = drafter_to_probe(config.drafter)
    if not drafter:
        return [ok("draft model", f"--drafter {config.drafter} needs none")]
    if model_drafter(drafter) and not config.draft_model:
        return []  # a device drafts without one then, and the short answers tell why
    arguments = (drafter, config.draft_model, str(config.threads))
    steps, code, said = await run_module("edge_client.doctor.probe", *arguments, seconds=LOAD_SECONDS)
    findings = report_steps(steps, code, said[-1] if said else "")
    usage = UsageError.exit_code if stands_in else None
    return [
        replace(each, status="warn", exit_code=0) if each.exit_code == usage else each for each in findings
    ]


def drafter_to_probe(drafter: str) -> str:
    """The drafter that the probe tries: of a chain the one with a model, or the user's own class; "" = none."""
    member = model_drafter(drafter)
    return member if member or drafter.partition(":")[0] in DRAFTERS.names() else drafter


def report_steps(steps: Steps, code: int, complaint: str) -> list[Finding]:
    """`steps` of probe.py, which ended with the exit code `code`; `complaint`: its last line."""
    told = {step["step"]: step for step in steps}
    library = told.get("library", {}).get("name", "")
    findings = []
    if "loaded" in told:
        loaded = told["loaded"]
        findings.append(ok("draft model", f"{loaded['name']}, loaded in {loaded['seconds']:.1f} s"))
    if "build" in told:
        has_cuda = any(Path(device).exists() for device in CUDA_DEVICES)
        findings.append(check_build(library, told["build"], _cpu_flags(), has_cuda))
    if "error" in told:
        error = from_code(told["error"]["code"], told["error"]["reason"])
        return [*findings, report_error("draft model", error, "choose another --draft-model or --drafter")]
    if code:
        return [*findings, report_crash(library, code, complaint)]
    return findings + check_speed(told.get("speed", {}).get("seconds"))


def check_build(library: str, build: dict[str, Any], cpu: set[str], has_cuda: bool) -> Finding:
    """Whether the llama.cpp of `library` was built to use the features of this processor."""
    built = {
        part.split("=")[0].split(":")[-1].strip() for part in build["features"].split("|") if "= 1" in part
    }
    missing = [name for flag, name in FEATURES.items() if flag in cpu and name not in built]
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
    gpu = "uses a GPU" if build["gpu"] else "no GPU support compiled in"
    return ok("llama.cpp", f"of {library}: {' '.join(sorted(built))}; {gpu}")


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    flags = [line.partition(":")[2] for line in lines if line.lower().startswith(("flags", "features"))]
    return set(flags[0].split()) if flags else set()


def check_speed(token_s: float | None) -> list[Finding]:
    """`token_s`: seconds per draft token; None = not measured."""
    if not token_s:
        return []
    detail = f"{1 / token_s:,.0f} tokens/s"
    if 1 / token_s < READING:
        return [warn("draft speed", detail, "use a smaller or more strongly quantized --draft-model")]
    return [ok("draft speed", detail)]
