"""How long steps take on a loaded target, beside what reading its weights and KV would take at least."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch

from opensled.core.messages import SamplingParams
from verify_server.engine.base import SampleRequest, Segment

if TYPE_CHECKING:  # it loads transformers
    from verify_server.engine.torch.torch_engine import TorchEngine

COPIED = {"cpu": 1 << 26, "cuda": 1 << 30}  # bytes
SAMPLED = SamplingParams(temperature=0.8)
KEY = bytes(16)


class StepTime(NamedTuple):
    """A step of one row for each of `rows` texts."""

    rows: int
    context: int
    seconds: float  # with the sampling
    sampling: float  # of those
    floor: float  # seconds to read weights and KV once, at the bandwidth of a copy


class TooMuchKV(NamedTuple):
    """A step for which there is no room."""

    rows: int
    context: int
    blocks: int  # that it needs


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


def step_times(
    engine: TorchEngine, rows: Sequence[int], contexts: Sequence[int], repeats: int, bandwidth: float
) -> Iterator[StepTime | TooMuchKV]:
    """Of every number of rows and context that the target has."""
    info = engine.info
    for context in [each for each in contexts if each <= info.context_length]:
        for count in rows:
            blocks = -(-context // info.block_size)
            if count * blocks > info.num_blocks:
                yield TooMuchKV(count, context, count * blocks)
            else:
                yield _measure(engine, count, context, repeats, bandwidth)


def _measure(engine: TorchEngine, rows: int, context: int, repeats: int, bandwidth: float) -> StepTime:
    device = engine.network.device
    segments = _segments(engine, rows, context)
    requests = [SampleRequest((row,), SAMPLED, KEY, context) for row in range(rows)]
    whole = median_seconds(lambda: engine.forward(segments).sample(requests), device, repeats)
    alone = median_seconds(lambda: engine.forward(segments), device, repeats)
    read = weight_bytes(engine) + rows * context * engine.kv_bytes
    return StepTime(rows, context, whole, max(0.0, whole - alone), read / bandwidth)


def _segments(engine: TorchEngine, rows: int, context: int) -> list[Segment]:
    """The last token of each text, which has KV blocks of its own."""
    blocks = -(-context // engine.info.block_size)
    firsts = range(0, rows * blocks, blocks)
    return [Segment((1,), context - 1, tuple(range(first, first + blocks)), 1) for first in firsts]


def weight_bytes(engine: TorchEngine) -> int:
    """That a step reads: all weights, and of an embedding that is no output layer nothing to speak of."""
    network = engine.network
    embedding, head = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    weights = {weight.data_ptr(): weight for weight in network.parameters()}
    if embedding.data_ptr() != head.data_ptr():
        weights.pop(embedding.data_ptr(), None)
    return sum(weight.numel() * weight.element_size() for weight in weights.values())
