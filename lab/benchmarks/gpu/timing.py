"""Seconds of work on a device, and the bytes that a step must read."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:  # it loads transformers
    from verify_server.engine.torch.torch_engine import TorchEngine

COPIED = {"cpu": 1 << 26, "cuda": 1 << 30}  # bytes


def copy_bandwidth(device: torch.device) -> float:
    """Bytes/s that a large copy reads and writes."""
    source = torch.ones(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), device, 5)
    return 2 * len(source) / seconds


def median_seconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds, the device's work included; after two runs that are not counted."""
    found = []
    for _ in range(repeats + 2):
        settle(device)
        start = time.perf_counter()
        run()
        settle(device)
        found.append(time.perf_counter() - start)
    return median(found[2:])


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def weight_bytes(engine: TorchEngine) -> int:
    """That a step reads: all weights, and of an embedding that is no output layer nothing to speak of."""
    network = engine.network
    embedding, head = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    weights = {weight.data_ptr(): weight for weight in network.parameters()}
    if embedding.data_ptr() != head.data_ptr():
        weights.pop(embedding.data_ptr(), None)
    return sum(weight.numel() * weight.element_size() for weight in weights.values())
