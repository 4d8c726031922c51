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
        "how engine torch computes attention: sdpa (torch's own), triton (reads KV where it lies; for GPUs); auto: the "
        "faster one that passes its test at load",
        choices=ATTENTION,
        group="a target on GPUs",
        file_only=True,
    )
    graphs: str = option(
        "auto",
        "small steps as CUDA graphs; auto: where a GPU and attention triton are",
        choices=GRAPHS,
        file_only=True,
    )
