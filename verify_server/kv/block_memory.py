"""The KV blocks of an engine as the memory of a target, in tokens."""

from collections.abc import Iterable, Mapping

from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.kv.memory import SequenceMemory, TargetMemory


class BlockMemory(TargetMemory):
    """See `TargetMemory`; a block counts whole."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool, self.prefix_size = pool, pool.block_size
        self.tokens = pool.num_blocks * pool.block_size

    @property
    def hits(self) -> int:
        """See `TargetMemory`."""
        return self._pool.hits

    @property
    def evicted(self) -> int:
        """See `TargetMemory`."""
        return self._pool.evictions * self._pool.block_size

    def states(self) -> dict[str, int]:
        """See `TargetMemory`."""
        return {state: blocks * self._pool.block_size for state, blocks in self._pool.states().items()}

    def count_held(self, tenant: str) -> int:
        """See `TargetMemory`."""
        return self._pool.count_held(tenant) * self._pool.block_size

    def room_beside(self, others: Iterable[SequenceMemory]) -> int:
        """See `TargetMemory`."""
        free = self._pool.num_blocks - sum(len(other.blocks) for other in others)
        return max(free, self._pool.num_free) * self._pool.block_size

    def prefixes(self) -> frozenset[bytes]:
        """See `TargetMemory`."""
        return self._pool.recent_prefixes()

    def place(self, tenant: str, budget: int, content: Mapping[int, int]) -> SequenceMemory:
        """See `TargetMemory`."""
        return BlockTable(self._pool, tenant, budget, content)
