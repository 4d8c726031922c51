"""Host memory for KV blocks that move out of the engine's memory, and the copies there and back.

On a CUDA device host memory is pinned, and each direction has a stream of its own: a copy waits for what the device was
given before it was asked for, and for nothing that comes later, so that no step waits for it. Nothing of CUDA is chosen
here but that; the same code runs between two memories of the CPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from opensled.errors import UsageError, first_line
from verify_server.engine.host_memory import free_host_bytes
from verify_server.engine.kv_memory import BLOCK_SIZE, KVMemory

log = logging.getLogger(__name__)

# Of the free host memory that KV may take, chosen: pinned memory is taken from everybody else.
MEMORY_SHARE = 0.5

Copy = Callable[[Tensor, Tensor, Sequence[tuple[int, int]]], None]


class HostKV:
    """A second place for blocks of all `memories`, which have the same blocks."""

    def __init__(self, memories: Iterable[KVMemory], num_blocks: int) -> None:
        """Allocates; raises MemoryError, or RuntimeError where memory cannot be pinned."""
        stored = [tensor for memory in memories for tensor in memory.tensors() if tensor.numel()]
        own = [tensor.view(len(tensor) // BLOCK_SIZE, -1) for tensor in stored]
        self._pairs = [(each, _allocated(num_blocks, each)) for each in own]
        self._device = own[0].device
        self._streams: dict[Copy, Any] = {}

    @property
    def block_bytes(self) -> int:
        """Of one block, in all memories."""
        return sum([own.shape[1] * own.element_size() for own, _ in self._pairs])

    def out(self, blocks: Sequence[int], host: Sequence[int]) -> Callable[[], None]:
        """See `TargetEngine.swap_out`."""
        return self._begun(_to_host, blocks, host)

    def back(self, host: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]:
        """See `TargetEngine.swap_in`."""
        return self._begun(_from_host, blocks, host)

    def _begun(self, copy: Copy, blocks: Sequence[int], host: Sequence[int]) -> Callable[[], None]:
        # In the order of host memory, where neighbours are copied at once
        places = sorted(zip(host, blocks, strict=True))
        return partial(self._run, copy, places, self._given())

    def _given(self) -> Any:
        """What the device has been given to do by now."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.default_stream(self._device))
        return event

    @torch.inference_mode()
    def _run(self, copy: Copy, places: Sequence[tuple[int, int]], given: Any) -> None:
        stream = self._stream(copy)
        with _on(stream):
            if stream is not None:
                stream.wait_event(given)
            for own, host in self._pairs:
                copy(own, host, places)
            if stream is not None:
                stream.synchronize()

    def _stream(self, copy: Copy) -> Any:
        if self._device.type != "cuda":
            return None
        if copy not in self._streams:
            self._streams[copy] = torch.cuda.Stream(self._device)
        return self._streams[copy]


def allocated(memories: Sequence[KVMemory], num_blocks: int) -> HostKV:
    """For blocks of these memories. Raises UsageError where the host has no room for as many."""
    wanted = num_blocks * BLOCK_SIZE * sum([memory.bytes_per_token() for memory in memories])
    most = int(free_host_bytes() * MEMORY_SHARE)
    if wanted <= most:
        try:
            return HostKV(memories, num_blocks)
        except (MemoryError, RuntimeError) as error:
            log.warning("host memory for KV: %s", first_line(error))
    raise UsageError(
        f"--kv-host-tokens {num_blocks * BLOCK_SIZE} needs {wanted / 2**30:.1f} GiB of host memory; KV may take "
        f"{most / 2**30:.1f} GiB of what is free now. Lower it"
    )


def _on(stream: Any) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _allocated(num_blocks: int, like: Tensor) -> Tensor:
    shape = (num_blocks, like.shape[1])
    if like.device.type == "cuda":
        return torch.zeros(shape, dtype=like.dtype, pin_memory=True)
    # Zero pages cost nothing until they are written, as in kv_memory.py.
    count = num_blocks * like.shape[1] * like.element_size()
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(like.dtype).view(shape)


def _to_host(own: Tensor, host: Tensor, places: Sequence[tuple[int, int]]) -> None:
    found = own.index_select(0, _index([block for _, block in places], own))
    for first, last in _runs([place for place, _ in places]):
        begin = places[first][0]
        host[begin : begin + last - first].copy_(found[first:last], non_blocking=True)


def _from_host(own: Tensor, host: Tensor, places: Sequence[tuple[int, int]]) -> None:
    found = own.new_empty(len(places), own.shape[1])
    for first, last in _runs([place for place, _ in places]):
        begin = places[first][0]
        found[first:last].copy_(host[begin : begin + last - first], non_blocking=True)
    own.index_copy_(0, _index([block for _, block in places], own), found)


def _index(blocks: Sequence[int], own: Tensor) -> Tensor:
    return torch.tensor(blocks, dtype=torch.int64, device=own.device)


def _runs(places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Stretches [first, last) of ascending places without a gap."""
    cuts = [index for index, (one, two) in enumerate(pairwise(places), 1) if two != one + 1]
    yield from pairwise([0, *cuts, len(places)])
