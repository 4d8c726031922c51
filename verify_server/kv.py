"""Which fixed-size KV blocks hold a session's computed tokens: pure bookkeeping, no tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class OutOfBlocks(Exception):
    """The pool cannot give what was asked; the loop frees some or lets the session wait."""


class BlockPool:
    """The KV blocks of one engine, numbered from 0; a block has one owner or is free."""

    def __init__(
        self, num_blocks: int, block_size: int, on_free: Callable[[Sequence[int]], object] | None = None
    ) -> None:
        """`on_free` hears of blocks that are given back, before anybody can take them."""
        self.num_blocks = num_blocks
        self._on_free = on_free
        self.block_size = block_size  # tokens
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, length: int) -> int:
        """How many blocks hold `length` tokens."""
        return -(-length // self.block_size)

    def take(self, count: int) -> list[int]:
        """`count` free blocks; all of them or OutOfBlocks and none."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} KV blocks wanted, {len(self._free)} free")
        return [self._free.pop() for _ in range(count)]

    def give_back(self, blocks: list[int]) -> None:
        if self._on_free is not None and blocks:
            self._on_free(tuple(blocks))
        self._free.extend(blocks)
        assert len(self._free) <= self.num_blocks, "a KV block was given back twice"


class BlockTable:
    """One session's blocks, in order: block i holds positions [i * block_size, (i + 1) * block_size)."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []

    def grow(self, length: int) -> None:
        """Cover positions [0, length); changes nothing when it raises OutOfBlocks."""
        missing = self._pool.blocks_for(length) - len(self.blocks)
        if missing > 0:
            self.blocks.extend(self._pool.take(missing))

    def truncate(self, length: int) -> None:
        """Give back every block beyond `length` tokens. Rollback is this and nothing else."""
        keep = self._pool.blocks_for(length)
        if keep >= len(self.blocks):
            return
        self._pool.give_back(self.blocks[keep:])
        del self.blocks[keep:]
