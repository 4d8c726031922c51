"""Checks whether the draft model loads, how its library was built, and whether it drafts fast enough."""

from __future__ import annotations

import signal
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from edge_client.device.config import DeviceConfig
from edge_client.doctor.finding import Finding, fail, ok, report_error, warn
from edge_client.doctor.own_process import Steps, run_module
from edge_client.drafters import DRAFTERS
from edge_client.drafters.threads import model_drafter
from opensled.core.errors import UsageError, from_code
from opensled.models.llama_api import BUILT, PREBUILT
from opensled.process import distribution

LOAD_SECONDS = 15.0  # to read a model from a slow memory card
READING = 5.0  # tokens/s; people read faster than a slower answer comes
# Processor features (as /proc/cpuinfo names them) that make llama.cpp several times faster, and its own names.
FEATURES = {"avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8"}
CUDA_DEVICES = ("/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu")  # a graphics card; a Jetson
ONNX = "onnxruntime"
NATIVE = "-DGGML_NATIVE=ON"
REBUILD = "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
OWN = "the libraries that this drafter uses"


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


def build_command(library: str, options: str) -> str:
    """The command that builds llama.cpp here; beside the library of a wheel it is installed, and then taken."""
    return f'CMAKE_ARGS="{options}" {distribution.command("llamacpp") if library == PREBUILT else REBUILD}'


def report_crash(library: str, code: int, complaint: str) -> Finding:
    """`library`: the module that was imported or used last, "" = one of the user's drafter."""
    if code == -signal.SIGILL:
        built = f"{_requirement(library) or OWN}: built for another processor: illegal instruction"
        return fail("draft model", built, _for_this_processor(library))
    if code == -signal.SIGKILL:
        cause = complaint or "killed, probably because memory ran out"
        return fail("draft model", cause, "use a smaller --draft-model, or --drafter lookup")
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    detail = f"trying it failed ({name}): {complaint or 'no message'}"
    return fail("draft model", detail, f"reinstall the runtime: {_again(library)}")


def _for_this_processor(library: str) -> str:
    """The next step after an illegal instruction."""
    if library in (BUILT, PREBUILT):
        return build_command(library, NATIVE)
    if library == ONNX:
        # Its wheel 1.21.0 for aarch64 alone asks for more than a Pi 4 has (deploy/aarch64_check.sh)
        other = f"take another onnxruntime (a Pi 4 runs 1.23 and newer): {distribution.command('onnx')}"
        return f"{other}; or a GGUF model with --drafter llamacpp: {distribution.command('prebuilt')}"
    return "install that library for this processor, or choose another --drafter"


def _again(library: str) -> str:
    """The command that installs a library anew, in the same version."""
    if library == BUILT:
        return REBUILD
    return (
        f"pip install --force-reinstall --no-cache-dir --no-deps {_requirement(library)}" if library else OWN
    )


def _requirement(library: str) -> str:
    """The library in its version, as pip reads it. The module llama_cpp is of the package llama-cpp-python."""
    try:
        return f"{library}=={metadata.version(library)}" if library else ""
    except metadata.PackageNotFoundError:
        return library
