"""Stage 4: the time of a step of a large target, beside what reading its weights and KV must take."""

import gc
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from lab.benchmarks.gpu.breakdown import breakdown
from lab.benchmarks.gpu.random_target import engine_of, random_network
from lab.benchmarks.gpu.stage import Stage
from lab.benchmarks.gpu.timing import copy_bandwidth, median_seconds, weight_bytes
from opensled.core.messages import SamplingParams
from verify_server.engine.base import SampleRequest, Segment
from verify_server.engine.torch.tiles import untile
from verify_server.engine.torch.torch_engine import TorchEngine

SAMPLED, KEY = SamplingParams(temperature=0.8), bytes(16)
MARGIN = 6 << 30  # bytes of the card that stay free of KV: graphs, and what a step computes in
BROKEN_DOWN = ((1, 0, 512), (32, 0, 512), (16, 7, 512))  # texts, drafted, context: their kernels are told
MIXTURE_S = 35.0  # of the stage's seconds, kept for the mixture of experts


class Way(NamedTuple):
    """How the target is computed."""

    attention: str
    graphs: str
    numerics: str


class Size(NamedTuple):
    """What is measured; the first combination is the most valuable one."""

    shapes: tuple[str, str]  # dense, and a mixture of experts
    dtype: torch.dtype
    ways: tuple[Way, ...]
    rows: tuple[int, ...]
    drafted: tuple[int, ...]  # tokens of each text's draft: a text has one row more
    contexts: tuple[int, ...]
    repeats: int


LARGE = Size(
    shapes=("llama-8b", "moe-32"),
    dtype=torch.bfloat16,
    ways=(
        Way("triton", "auto", "fast"),
        Way("sdpa", "off", "fast"),
        Way("triton", "auto", "exact"),
        Way("triton", "off", "fast"),
    ),
    rows=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    drafted=(0, 3, 7, 5),
    contexts=(512, 4096, 8192),
    repeats=8,
)
MINIATURE = Size(
    shapes=("llama-small", "moe-small"),
    dtype=torch.float32,
    ways=(Way("sdpa", "off", "fast"),),
    rows=(1, 4),
    drafted=(0, 3),
    contexts=(64,),
    repeats=1,
)


def measure(stage: Stage) -> None:
    """Every way of the dense target while there is time, then the mixture."""
    size = MINIATURE if stage.is_small else LARGE
    bandwidth = copy_bandwidth(torch.device(stage.device))
    stage.tell(copy_bytes_per_s=bandwidth, targets=[])
    for shape, reserve in zip(size.shapes, (0.0 if stage.is_small else MIXTURE_S, 0.0)):
        _target(stage, shape, size, bandwidth, reserve)
        gc.collect()
        if stage.device == "cuda":
            torch.cuda.empty_cache()


def _target(stage: Stage, shape: str, size: Size, bandwidth: float, reserve: float) -> None:
    """All ways of one target, until only `reserve` seconds are left."""
    began = time.perf_counter()
    network = random_network(shape, stage.device, size.dtype)
    found: dict[str, Any] = {"shape": shape, "dtype": str(size.dtype), "made_s": time.perf_counter() - began}
    stage.document["targets"].append(found)
    found["ways"] = []
    for place, way in enumerate(size.ways):
        # The first way is a server's own: it has half of the time, and the others share what is left.
        share = 0.5 if place == 0 else 1 / (len(size.ways) - place)
        until = stage.left - share * (stage.left - reserve)
        found["ways"].append(result := {**way._asdict()})
        _way(stage, network, way, size, bandwidth, max(reserve, until), result)
        stage.tell()
        untile(network)
        gc.collect()


def _way(
    stage: Stage, network: Any, way: Way, size: Size, bandwidth: float, until: float, result: dict[str, Any]
) -> None:
    """Steps until `until` seconds of the stage are left; an error is a result."""
    began = time.perf_counter()
    try:
        engine = engine_of(network, _kv_tokens(stage, network), max(size.contexts), *way)
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
        return
    result |= {
        "load_s": round(time.perf_counter() - began, 2),
        "used": engine.way,
        "level": engine.info.numerics,
        "weight_bytes": weight_bytes(engine),
        "kv_bytes_per_token": engine.kv_bytes,
        "kv_tokens": engine.info.num_blocks * engine.info.block_size,
        "steps": [],
    }
    for step in _shapes(size):
        if stage.left <= until:
            result["left_out"] = "the time was over"
            return
        result["steps"].append(_measured(engine, *step, size.repeats, bandwidth))
        if step in BROKEN_DOWN:
            result["steps"][-1]["kernels"] = breakdown(partial(_sampled, engine, *step))
        stage.tell()


def _kv_tokens(stage: Stage, network: Any) -> int:
    """As many as the card has room for; the miniature needs few."""
    if stage.is_small:
        return 2048
    config = network.config
    token = (
        2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * network.dtype.itemsize
    )
    torch.cuda.empty_cache()
    return int((torch.cuda.mem_get_info()[0] - MARGIN) // token)


def _shapes(size: Size) -> Iterator[tuple[int, int, int]]:
    """(texts, drafted tokens of each, context), each once; short contexts and plain decoding first."""
    seen = set()
    for context, drafted, rows in product(size.contexts, size.drafted, size.rows):
        texts = rows // (drafted + 1)
        if texts and (step := (texts, drafted, context)) not in seen:
            seen.add(step)
            yield step


def _measured(
    engine: TorchEngine, texts: int, drafted: int, context: int, repeats: int, bandwidth: float
) -> dict[str, Any]:
    """One shape: seconds with the sampling, those of the sampling, and the floor."""
    facts: dict[str, Any] = {
        "texts": texts,
        "drafted": drafted,
        "rows": texts * (drafted + 1),
        "context": context,
    }
    blocks = texts * -(-context // engine.info.block_size)
    if blocks > engine.info.num_blocks:
        return facts | {"no_room": f"{blocks} KV blocks are needed, {engine.info.num_blocks} are there"}
    try:
        whole, alone = _seconds(engine, texts, drafted, context, repeats)
    except Exception as error:
        return facts | {"error": f"{type(error).__name__}: {error}"}
    floor = (weight_bytes(engine) + texts * context * engine.kv_bytes) / bandwidth
    facts |= {"seconds": whole, "sampling_s": max(0.0, whole - alone), "floor_s": floor}
    return facts | {"share_of_floor": floor / whole}


def _seconds(
    engine: TorchEngine, texts: int, drafted: int, context: int, repeats: int
) -> tuple[float, float]:
    """Of a step with its sampling, and of the pass alone."""
    device = engine.network.device
    whole = median_seconds(partial(_sampled, engine, texts, drafted, context), device, repeats)
    segments = _segments(engine, texts, drafted + 1, context)
    return whole, median_seconds(lambda: engine.forward(segments), device, repeats)


def _sampled(engine: TorchEngine, texts: int, drafted: int, context: int) -> object:
    """The ids of a step."""
    rows = drafted + 1
    places = [tuple(range(text * rows, (text + 1) * rows)) for text in range(texts)]
    requests = [SampleRequest(each, SAMPLED, KEY, context - rows + 1) for each in places]
    return engine.forward(_segments(engine, texts, rows, context)).sample(requests)


def _segments(engine: TorchEngine, texts: int, rows: int, context: int) -> Sequence[Segment]:
    """The last rows of each text, which has KV blocks of its own."""
    blocks = -(-context // engine.info.block_size)
    firsts = range(0, texts * blocks, blocks)
    return [
        Segment((1,) * rows, context - rows, tuple(range(first, first + blocks)), rows) for first in firsts
    ]
