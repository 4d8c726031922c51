"""How long the Triton kernels take on a GPU, beside the KV that they read. Imported only where Triton is installed."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from lab.benchmarks.gpu.attention_cases import PAGE, Shape
from lab.benchmarks.gpu.timing import median_seconds, settle
from verify_server.engine.base import Segment
from verify_server.engine.torch.attention import backend_of
from verify_server.engine.torch.packing import Geometry
from verify_server.engine.torch.triton_attention import attend

DTYPE = torch.bfloat16
REPEATS = 10
LAYERS = 32  # calls in one graph, each with KV of its own, as long as a cache could hold that of several
CACHED = 1 << 28  # bytes, more than any L2 cache has


class Cell(NamedTuple):
    """A step: each text has `rows` at its end, a token or a chain with its draft."""

    texts: int
    rows: int
    context: int  # tokens of each text


CELLS = tuple(
    Cell(texts, rows, context)
    for texts, rows in ((1, 1), (32, 1), (128, 1), (32, 5), (128, 5))
    for context in (512, 4096, 8192)
)
FIRST_CALLS = (Cell(3, 1, 500), Cell(1, 1, 500), Cell(16, 1, 500), Cell(3, 1, 300), Cell(3, 1, 500))


def first_calls(shape: Shape, device: torch.device) -> Iterator[dict[str, Any]]:
    """Seconds of one call each; the last one is a shape that has been before."""
    for cell in FIRST_CALLS:
        call = _calls(shape, cell, device)[0]
        settle(device)
        began = time.perf_counter()
        call()
        settle(device)
        yield {**cell._asdict(), "call_s": time.perf_counter() - began}


def timed_attend(shape: Shape, cell: Cell, device: torch.device) -> dict[str, Any]:
    """Seconds of one layer's attention, by itself and as one of several in a CUDA graph, which is how it is served."""
    calls = _calls(shape, cell, device)
    eager = median_seconds(calls[0], device, REPEATS)
    graph = median_seconds(_captured(calls), device, REPEATS) / len(calls)
    read = kv_bytes(shape, cell)
    return {
        "holds": True,
        "eager_s": eager,
        "graph_s": graph,
        "kv_bytes": read,
        "kv_bytes_per_s": read / graph,
    }


def kv_bytes(shape: Shape, cell: Cell) -> int:
    """Keys and values of all texts, each read once."""
    return cell.texts * cell.context * shape.kv_heads * (shape.size + shape.value_size) * DTYPE.itemsize


def _calls(shape: Shape, cell: Cell, device: torch.device) -> list[Callable[[], object]]:
    """The same step over the KV of several layers."""
    blocks = -(-cell.context // PAGE)
    segments = [
        Segment((0,) * cell.rows, cell.context - cell.rows, tuple(range(first, first + blocks)), cell.rows)
        for first in range(0, cell.texts * blocks, blocks)
    ]
    rows = cell.texts * cell.rows
    table = backend_of("triton").plan(segments, Geometry(1, 1, 64), rows, device)
    query = torch.randn(rows, shape.kv_heads * shape.folded, shape.size, device=device, dtype=DTYPE)
    memories = [
        torch.randn(2, cell.texts * blocks * PAGE, shape.kv_heads, shape.size, device=device, dtype=DTYPE)
        for _ in range(min(LAYERS, 1 + CACHED // kv_bytes(shape, cell)))
    ]
    return [
        partial(attend, query, keys, values, table, shape.attend)
        for keys, values in (memories * LAYERS)[:LAYERS]
    ]


def _captured(calls: list[Callable[[], object]]) -> Callable[[], object]:
    """All of them as one CUDA graph, which leaves out what Python takes to launch them."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    del kept
    return graph.replay
