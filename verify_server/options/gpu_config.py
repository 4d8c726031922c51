"""Options of `opensled serve` for targets on GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.cli.config import option
from verify_server.options.registries import ATTENTION, GRAPHS


@dataclass(frozen=True)
class GpuConfig:
    """How a torch target uses them."""

    attention: str = option(
        "auto",
        "attention kernel of engine torch: sdpa (torch's own) or triton (for GPUs; reads the paged KV cache in place); "
        "auto: the faster one that passes its test at load",
        choices=ATTENTION,
        group="GPU kernels",
        file_only=True,
    )
    graphs: str = option(
        "auto",
        "run small steps as CUDA graphs; auto: on a GPU with attention triton",
        choices=GRAPHS,
        file_only=True,
    )
