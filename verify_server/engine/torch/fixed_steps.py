"""Steps in few fixed shapes over buffers that stay: what a CUDA graph can replay without Python.

A step's numbers are written to one host buffer, and go to the device in one copy. What follows reads them there and
never asks the host: the forward pass of a bucket, captured at its first use and replayed from then on. Nothing here is
a GPU's own but `GraphCapture`, so on a processor the same steps run without it, in tests.

A step that fits no bucket, or wants what a replay cannot give, is computed as before. `check_fixed` compares steps in
fixed shapes with the same steps as they come: part of the self-test at load, failing closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from opensled.core.errors import SelfTestFailed
from verify_server.engine.base import Segment
from verify_server.engine.torch.attention import backend_of
from verify_server.engine.torch.kv_memory import BLOCK_SIZE
from verify_server.engine.torch.packed_model import PackedModel
from verify_server.engine.torch.packing import PackedBatch, padded_rows, rows_of
from verify_server.engine.torch.paged_table import PagedBackend, PagedPlan, PagedShape, PagedTable
from verify_server.engine.torch.selftest import RAGGED, check_close, failing_closed, play, same_bits
from verify_server.engine.torch.short_model import num_layers
from verify_server.engine.torch.tap import HiddenTap

log = logging.getLogger(__name__)

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # of a bucket
BLOCKS = (32, 128, 512, 2048, 8192)  # KV blocks of the longest text in it
COLUMNS = 4  # numbers of a row: its token, its position, its slot, and the row whose logits are wanted

Compute = Callable[[], Tensor]


class Capture(Protocol):
    """Makes of a computation one that only runs its kernels again, over the same tensors."""

    def __call__(self, compute: Compute) -> Compute | None:
        """None: there is no memory for one more."""


def skip_capture(compute: Compute) -> Compute:
    """A `Capture` for any device: computes anew each time."""
    return compute


class _BucketKey(NamedTuple):
    """Of a bucket."""

    rows: int
    blocks: int

    @property
    def table(self) -> PagedShape:
        """Every row may be a tile and a context of its own."""
        return PagedShape(self.rows, self.rows, self.rows, self.blocks)


@dataclass(frozen=True)
class _Bucket:
    """One fixed shape."""

    batch: PackedBatch  # of views of the device's buffer
    replay: Compute  # logits [rows, vocabulary], in memory that the next replay overwrites
    states: Sequence[dict[int, Tensor]]  # what each tap holds, where a replay fills it


class FixedSteps:
    """Runs the steps of a `PackedModel` that fit a bucket. Its backend must read KV by a table."""

    def __init__(
        self, model: PackedModel, capture: Capture = skip_capture, taps: Sequence[HiddenTap] = ()
    ) -> None:
        """`taps`: whose states a step must leave behind."""
        backend = backend_of(model.backend)
        assert isinstance(backend, PagedBackend), "other backends have shapes of their own"
        self._model, self._backend, self._capture, self._taps = model, backend, capture, taps
        self._keys = _keys(model)
        self._buckets: dict[_BucketKey, _Bucket | None] = {}
        most = max(sum(key.table.sizes) + COLUMNS * key.rows for key in self._keys)
        pinned = model.network.device.type == "cuda"
        self._host = torch.zeros(most, dtype=torch.int32, pin_memory=pinned)
        self._device = torch.zeros(most, dtype=torch.int32, device=model.network.device)
        self._sent: torch.cuda.Event | None = torch.cuda.Event() if pinned else None

    def run(self, segments: Sequence[Segment]) -> tuple[Tensor, PackedBatch] | None:
        """As `PackedModel.run`; the logits hold until the next step. None: the step fits no bucket."""
        if sum(len(segment.tokens) for segment in segments) > self._keys[-1].rows:
            return None
        plan = PagedPlan(segments, self._model.geometry.by_path)
        key = self._key_of(plan.shape)
        if key is None or (key in self._buckets and self._buckets[key] is None):
            return None
        wanted = self._write(key, plan, segments)
        if key not in self._buckets:
            self._buckets[key] = self._make(key)
        bucket = self._buckets[key]
        if bucket is None:
            return None
        for tap, states in zip(self._taps, bucket.states):
            tap.hold(dict(states))
        logits = bucket.replay()
        return logits[:wanted], replace(bucket.batch, live=plan.shape.rows, num_wanted=wanted)

    def _key_of(self, shape: PagedShape) -> _BucketKey | None:
        """The smallest bucket with room for such a step."""
        fits = (key for key in self._keys if key.rows >= shape.rows and key.blocks >= shape.blocks)
        return next(fits, None)

    def _write(self, key: _BucketKey, plan: PagedPlan, segments: Sequence[Segment]) -> int:
        """Puts the step into the device's buffer; returns how many rows of logits it wants."""
        if self._sent is not None:
            self._sent.synchronize()  # the copy of the step before has left this memory
        columns, rest = _columns(self._host.numpy(), key)
        table = rest[: sum(key.table.sizes)]
        plan.write(table, key.table)
        tokens, positions, slots, wanted = rows_of(segments)
        columns[:] = 0
        columns[2] = (
            self._model.memory.num_blocks * BLOCK_SIZE
        )  # rows that are none are written behind all blocks
        columns[:3, : len(tokens)] = tokens, positions, slots
        columns[3, : len(wanted)] = wanted
        used = columns.size + table.size
        self._device[:used].copy_(self._host[:used], non_blocking=True)
        if self._sent is not None:
            self._sent.record()
        return len(wanted)

    def _make(self, key: _BucketKey) -> _Bucket | None:
        batch, wide, narrow = self._batch(key)

        def compute() -> Tensor:
            wide.copy_(narrow)
            return self._model.compute(batch)

        replay = self._capture(compute)
        if replay is None:
            log.info("no memory for a graph of %d rows and %d KV blocks; such steps run without one", *key)
            return None
        return _Bucket(batch, replay, [dict(tap.latest_states()) for tap in self._taps])

    def _batch(self, key: _BucketKey) -> tuple[PackedBatch, Tensor, Tensor]:
        """A batch whose numbers stay where they are, those of its rows as int64, and the same as they arrive."""
        numbers = self._device[: COLUMNS * key.rows].view(COLUMNS, key.rows)
        table = self._device[COLUMNS * key.rows :][: sum(key.table.sizes)]
        wide = torch.zeros((COLUMNS, key.rows), dtype=torch.int64, device=self._device.device)
        batch = PackedBatch(
            memory=self._model.memory,
            backend=self._backend,
            tokens=wide[:1],
            positions=wide[1:2],
            wanted=wide[3],
            num_wanted=key.rows,
            slots=wide[2],
            tails=wide[0, :0],
            plan=PagedTable.over(table, key.table),
            live=key.rows,
        )
        return batch, wide, numbers


def _keys(model: PackedModel) -> list[_BucketKey]:
    """Of all buckets that the model's geometry allows and its memory can fill, the smallest first."""
    most = next((blocks for blocks in BLOCKS if blocks >= model.memory.num_blocks), BLOCKS[-1])
    sizes = [rows for rows in ROWS if padded_rows(rows, model.geometry.rows) == rows]
    return [_BucketKey(rows, blocks) for rows in sizes for blocks in BLOCKS if blocks <= most]


def _columns(host: np.ndarray, key: _BucketKey) -> tuple[np.ndarray, np.ndarray]:
    """[COLUMNS, rows] at the beginning of the buffer, and what follows."""
    count = COLUMNS * key.rows
    return host[:count].reshape(COLUMNS, key.rows), host[count:]


class GraphCapture:
    """A `Capture` of one GPU: a CUDA graph, which is one launch.

    All graphs share their memory: only one runs at a time, and its logits are used first.
    """

    def __init__(self, budget: int) -> None:
        """`budget`: bytes that the graphs may take."""
        self._pool = torch.cuda.graph_pool_handle()
        self._budget, self.used = budget, 0

    def __call__(self, compute: Compute) -> Compute | None:
        """See `Capture`."""
        if self.used >= self._budget:
            return None
        before = torch.cuda.memory_reserved()
        here, beside = torch.cuda.current_stream(), torch.cuda.Stream()
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            compute()  # compiles kernels and lets libraries allocate, which a capture forbids
        here.wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                logits = compute()
        except torch.OutOfMemoryError:
            self._budget = self.used  # no other one is tried
            return None
        self.used += max(0, torch.cuda.memory_reserved() - before)

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay


def check_fixed(model: PackedModel, fixed: FixedSteps, is_exact: bool) -> int:
    """How many steps were fixed. `model` must have its own small memory of NUM_BLOCKS. Raises SelfTestFailed."""
    done = 0

    def run(segments: Sequence[Segment]) -> Tensor:
        nonlocal done
        found = fixed.run(segments)
        done += found is not None
        return found[0].clone() if found else model.run(segments)[0]

    with failing_closed():
        layers = num_layers(model.network)
        plain, _ = play(model, RAGGED, layers)
        # Twice: captured first, then replayed, and each time after other steps in the same memory.
        for given, _ in [play(model, RAGGED, layers, run) for _ in range(2)]:
            if is_exact and not same_bits(given, plain):
                raise SelfTestFailed("a step in a fixed shape has other bits than the same step as it comes")
            for own, expected in zip(given, plain):
                check_close(own, expected, "a step in a fixed shape differs")
    return done
