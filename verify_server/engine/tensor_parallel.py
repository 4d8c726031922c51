"""A target cut into shards: the engine that this process and others compute together, one GPU each.

This process is the first shard. It alone samples, and tells the others what to compute; all have the same KV blocks,
and in each its own heads. On processors it works as well, for tests: gloo takes the place of NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from hw_profiles.detect import usable_cores
from opensled.errors import UnsupportedModel, UsageError
from opensled.registry import remedy
from verify_server.engine import loading, torch_engine
from verify_server.engine.base import Segment, TargetEngine
from verify_server.engine.shard import Shard, join, leave
from verify_server.engine.shard_links import LOAD, ShardLinks
from verify_server.engine.shard_plan import check_plan
from verify_server.engine.torch_engine import TorchEngine
from verify_server.engine.torch_scores import TorchScores


class ShardedEngine(TargetEngine):
    """See `verify_server.engine.base.TargetEngine`. Every method raises EngineLost once a shard is lost."""

    def __init__(self, first: TorchEngine, links: ShardLinks) -> None:
        """`first`: this process' shard."""
        self._first, self._links = first, links
        self.info = replace(first.info, shards=links.size)

    def forward(self, segments: Sequence[Segment]) -> TorchScores:
        """Raises EngineError for a token the model does not know, before any shard has it."""
        self._first.check(segments)
        with self._links.call("forward", segments):
            return self._first.forward(segments)

    def compact(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """See `verify_server.engine.base.TargetEngine`."""
        with self._links.call("compact", blocks, moves):
            self._first.compact(blocks, moves)

    def erase(self, blocks: Sequence[int], start: int) -> None:
        """See `verify_server.engine.base.TargetEngine`."""
        with self._links.call("erase", blocks, start):
            self._first.erase(blocks, start)

    def keep(self, layer: int) -> None:
        """See `verify_server.engine.base.TargetEngine`: between layers all shards have the whole hidden states."""
        with self._links.call("keep", layer):
            self._first.keep(layer)


def check(model: str, device: str, shards: int) -> None:
    """Refuses before a process is started what shards cannot serve. Raises UsageError, NotFound, UnsupportedModel."""
    if find_spec("accelerate") is None:  # transformers asks for it to place the parts
        raise UsageError(f"--shards needs the package accelerate{remedy('accelerate')}")
    place = loading.pick_device(device)
    if place.index is not None:
        raise UsageError(
            f"--device {device} with --shards: each shard takes a GPU of its own; use --device cuda"
        )
    if place.type == "cuda" and torch.cuda.device_count() < shards:
        raise UsageError(
            f"{shards} shards need a GPU each, and there are {torch.cuda.device_count()}; lower --shards"
        )
    if place.type == "cpu" and torch.cuda.is_available():
        raise UsageError(
            'transformers cuts a model over the GPUs where there are some; hide them: CUDA_VISIBLE_DEVICES="" opensled '
            "serve --device cpu"
        )
    weights = loading.find_weights(model)
    if weights.gguf:
        raise UnsupportedModel(
            f"{weights.path}: shards read safetensors, of which each takes its part; serve a folder with safetensors, "
            "or leave --shards out"
        )
    if method := loading.quantized_by(weights, place):
        raise UnsupportedModel(
            f"weights quantized by {method.name} are not cut into shards here; leave --shards out, or serve other "
            "safetensors"
        )
    check_plan(loading.read_config(weights), shards)


def start(shards: int, threads: int, on_loss: Callable[[], None], **options: Any) -> ShardedEngine:
    """The target over processes that are started for it, and end with this one; see `load` and `ShardLinks`."""
    check(options["model"], options["device"], shards)
    links = ShardLinks(shards, on_loss=on_loss)
    try:
        return load(links, threads, **options)
    except BaseException:
        links.close()
        raise


def load(links: ShardLinks, threads: int, **options: Any) -> ShardedEngine:
    """The target over processes that run; `options`: of `torch_engine.load`, whose errors it raises, and EngineLost.

    Called again, it loads another target in their place. Call `check` first.
    """
    shard = Shard(0, links.size)
    options = {**options, **_alike(options.get("attention", "auto"))}
    device = loading.pick_device(options["device"])
    threads = threads or max(1, usable_cores() // shard.beside(device))
    loading.use_threads(threads)
    with links.call(LOAD, threads, options):
        if not torch.distributed.is_initialized():
            join(shard, links.meeting, device)
        first = torch_engine.load(**options, shard=shard)
    links.await_ready()
    return ShardedEngine(first, links)


def _alike(attention: str) -> dict[str, str]:
    """All shards compute by the same kernels, whatever one of them finds at load; sums of shards in graphs were never
    tried."""
    return {"graphs": "off", "attention": "sdpa" if attention == "auto" else attention}


def close(links: ShardLinks) -> None:
    """End the other shards, and leave their group."""
    links.close()
    leave()
