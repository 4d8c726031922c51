"""One process of several that compute a target together: its place among them, and what they must agree upon.

Every shard holds its own part of each weight matrix and the KV of its own heads (transformers' tensor parallel plans),
and computes every step. Shards run the same program on the same input; where they decide by what they find on their
machine, they ask each other first, else one would wait for ever for a sum that the other never makes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from transformers import PreTrainedModel

from opensled.errors import UsageError

T = TypeVar("T")

# Two shards add two numbers, in whatever order. The order in which more are added depends on where in the batch a row
# is: a sum in a ring begins at another shard for each part of it.
EXACT_SHARDS = 2
# For the slowest shard to have read its weights. Who hangs is found long before: see shard_links.py.
WAIT = timedelta(minutes=30)


@dataclass(frozen=True)
class Shard:
    """The shard `rank` of `size`; a target that one process computes alone is shard 0 of 1."""

    rank: int = 0
    size: int = 1

    def same(self, value: T) -> T | None:
        """The value, if all shards have the same one."""
        return value if all(other == value for other in self._everyone(value)) else None

    def least(self, value: int) -> int:
        return min(self._everyone(value))

    def beside(self, device: torch.device) -> int:
        """Shards that share the memory of a device: on processors all, else each has its own."""
        return self.size if device.type == "cpu" else 1

    def numerics(self, wanted: str) -> str:
        """The level to try for one that is wanted. Raises UsageError."""
        if self.size <= EXACT_SHARDS or wanted == "fast":
            return wanted
        if wanted == "exact":
            raise UsageError(
                f"--numerics exact with {self.size} shards: the order in which more than {EXACT_SHARDS} shards add "
                "their parts depends on the batch; use --shards 2, or --numerics fast"
            )
        return "fast"

    def _everyone(self, value: T) -> list[T]:
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


ALONE = Shard()


def join(shard: Shard, meeting: Path, device: torch.device) -> None:
    """Meet the other shards by a file in a folder that only this user can read; returns when all are there."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(shard.rank)
    # All shards are on one machine: without these the libraries would listen on its network.
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")
    os.environ["LOCAL_RANK"] = str(shard.rank)  # by which transformers chooses the GPU
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.FileStore(str(meeting), shard.size),
        rank=shard.rank,
        world_size=shard.size,
        timeout=WAIT,
        device_id=torch.device("cuda", shard.rank) if on_gpu else None,
    )


def leave() -> None:
    """The others may be gone already."""
    if dist.is_initialized():
        dist.destroy_process_group()


def own_parts(network: PreTrainedModel) -> None:
    """Linear layers hold this shard's part of their weights as plain tensors, by whose shape kernels are chosen.

    transformers wraps the parts as tensors of the whole shape, and unwraps them in every call.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            for name, whole in list(module.named_parameters(recurse=False)):
                if isinstance(whole, dist.tensor.DTensor):
                    module.register_parameter(name, nn.Parameter(whole.to_local(), requires_grad=False))
