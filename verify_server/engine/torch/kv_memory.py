"""The tensors behind the KV blocks: keys and values of every layer, addressed by slot.

Slot `block * BLOCK_SIZE + offset` holds one token. verify_server/kv/blocks.py says which session owns which block.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BLOCK_SIZE = 16  # tokens per KV block


class KVMemory:
    """Keys and values by layer, allocated at a layer's first write: heads and sizes may differ between layers."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores tokens [n, KV heads, head size] at `slots` [n]."""
        stored = self._layers.get(layer)
        if stored is None:
            stored = self._layers[layer] = self._allocate(keys), self._allocate(values)
        stored[0].index_copy_(0, slots, keys)
        stored[1].index_copy_(0, slots, values)

    def clear(self, layer: int, slots: Tensor) -> None:
        """Zero at `slots` [n], which a mask hides: NaN would survive it."""
        if len(slots):
            for tensor in self._layers[layer]:
                tensor.index_fill_(0, slots, 0)

    def erase(self, slots: Tensor) -> None:
        """Zero at `slots` [n] in every layer."""
        for layer in self._layers:
            self.clear(layer, slots)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [slots, KV heads, size] where they lie."""
        return self._layers[layer]

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values of `blocks` [n]: two tensors [n * BLOCK_SIZE, KV heads, head size]."""
        keys, values = self._layers[layer]
        return _gather(keys, blocks), _gather(values, blocks)

    def fetch(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values at `slots` [n]: two tensors [n, KV heads, head size]."""
        keys, values = self._layers[layer]
        return keys.index_select(0, slots), values.index_select(0, slots)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """In every layer, what is at the slots `sources` [n] is at `targets` [n] as well; the two may overlap."""
        for layer, stored in self._layers.items():
            for tensor, moved in zip(stored, self.fetch(layer, sources)):
                tensor.index_copy_(0, targets, moved)

    def allocate_like(self, probe: KVMemory) -> None:
        """Allocates every layer the probe has seen, so that a lack of memory shows at load."""
        for layer, (keys, values) in probe._layers.items():
            self._layers[layer] = self._allocate(keys), self._allocate(values)

    def lodge(self, probe: KVMemory) -> KVMemory | None:
        """Memory of the form of `probe` in the same tensors: a block here holds one or more of its blocks. None: it has
        more tensors, or they do not divide these."""
        hosts, guests = self._tensors(), probe._tensors()
        pairs = [(host, guest) for host, guest in zip(hosts, guests) if _row_bytes(guest)]
        share = min([_row_bytes(host) // _row_bytes(guest) for host, guest in pairs], default=0)
        even = share and all(_row_bytes(host) % (share * guest.element_size()) == 0 for host, guest in pairs)
        if not even or len(pairs) < len(guests):
            return None
        memory, views = KVMemory(self.num_blocks * share), iter([_view(*pair, share) for pair in pairs])
        memory._layers = {layer: (next(views), next(views)) for layer in probe._layers}
        return memory

    def bytes_per_token(self) -> int:
        """Bytes one token takes over all layers seen so far."""
        return sum(map(_row_bytes, self._tensors()))

    def _tensors(self) -> list[Tensor]:
        return [tensor for pair in self._layers.values() for tensor in pair]

    def _allocate(self, like: Tensor) -> Tensor:
        # One block more, which no session owns: where rows of a fixed shape that are no tokens write.
        shape = ((self.num_blocks + 1) * BLOCK_SIZE, *like.shape[1:])
        if like.device.type != "cpu" or not like.shape[-1]:
            return torch.zeros(shape, dtype=like.dtype, device=like.device)
        # numpy asks the system for zero pages, which cost nothing until written; torch would write them all now.
        count = like[0].numel() * like.element_size() * shape[0]
        return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(like.dtype).view(shape)


def _row_bytes(stored: Tensor) -> int:
    """Bytes of one token."""
    return stored[0].numel() * stored.element_size()


def _view(host: Tensor, guest: Tensor, share: int) -> Tensor:
    """A tensor [slots * share, KV heads, size] of the form of `guest`, in `host` [slots, KV heads, size]."""
    rows = host.flatten(1).view(torch.uint8).view(len(host) * share, -1)[:, : _row_bytes(guest)]
    return rows.view(guest.dtype).unflatten(-1, guest.shape[1:])


def _gather(stored: Tensor, blocks: Tensor) -> Tensor:
    by_block = stored.view(-1, BLOCK_SIZE, *stored.shape[1:])
    return by_block.index_select(0, blocks).flatten(0, 1)
