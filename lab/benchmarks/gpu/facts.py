"""Stage 1: the card, its driver, the versions, what a copy moves in a second, and what a matrix product computes."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from lab.benchmarks.gpu.stage import Stage
from lab.benchmarks.gpu.timing import copy_bandwidth, median_seconds

PACKAGES = (
    *(
        "torch",
        "triton",
        "transformers",
        "tokenizers",
        "safetensors",
        "numpy",
        "grpcio",
        "protobuf",
        "jinja2",
    ),
    *("pillow", "httpx", "huggingface_hub", "prometheus_client", "uvloop", "gguf", "llguidance", "ray"),
)
SIDE = {"cuda": 8192, "cpu": 512}  # of the square matrices whose product is timed
REPEATS = 10


def measure(stage: Stage) -> None:
    """Fills the document; nothing here can be wrong, only missing."""
    stage.tell(machine=_machine(), versions={name: _version(name) for name in PACKAGES})
    device = torch.device(stage.device)
    stage.tell(card=_card(device))
    stage.tell(copy_bytes_per_s=copy_bandwidth(device))
    stage.tell(bf16_matrix_flops=_matrix_flops(device, SIDE[stage.device]))


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _card(device: torch.device) -> dict[str, Any]:
    """Of the GPU; a processor has no card."""
    if device.type == "cpu":
        return {"name": "no GPU: everything in miniature on the processor"}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "nvidia_smi": _nvidia_smi(),
    }


def _nvidia_smi() -> str:
    """Driver, limits and clocks, as the driver's own program says them."""
    query = "driver_version,power.limit,clocks.max.sm,clocks.max.mem,memory.total,mig.mode.current"
    try:
        run = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not run: {error}"
    return run.stdout.strip() or run.stderr.strip()


def _matrix_flops(device: torch.device, side: int) -> float:
    """FLOP/s of a product of two bfloat16 matrices of random numbers."""
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * side**3 / median_seconds(lambda: left @ right, device, REPEATS)
