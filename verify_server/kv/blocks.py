"""One session's KV blocks, in order; pool.py says who holds which block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verify_server.kv.pool import BlockPool, OverBudget
from verify_server.kv.prefix import next_key, reusable_blocks, root_key


class BlockTable:
    """One session's blocks, in order: block i holds positions [i * block_size, (i + 1) * block_size)."""

    def __init__(
        self, pool: BlockPool, tenant: str = "", budget: int = 0, content: Mapping[int, int] | None = None
    ) -> None:
        """`budget`: tokens of KV that all sessions of the tenant may hold together; 0 = no limit. `content`: of
        positions whose KV does not follow from their token, what it follows from (a row of a picture)."""
        self.blocks: list[int] = []
        self._pool = pool
        self._tenant = tenant
        self._budget = pool.blocks_for(budget)
        self.content = content or {}  # never written
        self._settled = 0  # leading blocks that are never written again, because others may read them
        # Of the leading full blocks; committed text only grows, so that they stay valid
        self._keys: list[bytes] = []

    @property
    def frozen(self) -> int:
        """Positions [0, frozen) are never written again."""
        return self._settled * self._pool.block_size

    def grow(self, length: int) -> None:
        """Cover positions [0, length); changes nothing when it raises OutOfBlocks or OverBudget."""
        if length <= len(self.blocks) * self._pool.block_size:
            return
        missing = self._pool.blocks_for(length) - len(self.blocks)
        if missing > self._budget_left():
            left = self._budget_left()
            raise OverBudget(f"{missing} KV blocks wanted, the tenant's budget leaves {left}")
        self.blocks.extend(self._pool.take(missing, self._tenant))

    def reach(self) -> int:
        """Positions [0, reach) that it can cover without a preemption."""
        more = min(self._pool.num_free, max(0, self._budget_left()))
        return (len(self.blocks) + more) * self._pool.block_size

    def truncate(self, length: int) -> None:
        """Give back all blocks beyond `length` tokens. This is the whole rollback."""
        assert length >= self.frozen, "committed tokens are never rolled back"
        keep = self._pool.blocks_for(length)
        if keep >= len(self.blocks):  # nearly always
            return
        self._pool.give_back(self.blocks[keep:], self._tenant)
        del self.blocks[keep:]

    def clear(self) -> None:
        """Give all blocks back."""
        if self._pool.prefixes is not None:
            self._pool.prefixes.touch(self._keys[: self._settled])
        self._settled = 0
        self.truncate(0)

    def is_own(self, start: int) -> bool:
        """Whether only this session holds the blocks of positions from `start` on."""
        for block in self.blocks[start // self._pool.block_size :]:
            if self._pool.holders(block) != 1:
                return False
        return start >= self.frozen

    def publish(self, tokens: Sequence[int], computed: int) -> None:
        """Make the full blocks of positions [0, computed), which hold committed `tokens`, findable."""
        full, index = computed // self._pool.block_size, self._pool.prefixes
        if index is None or full <= self._settled:
            return
        for number in range(self._settled, full):
            index.add(self.key(number, tokens), self.blocks[number])
        self._settled = full

    def adopt(self, tokens: Sequence[int], computed: int) -> int:
        """Continue after `computed` positions of the committed `tokens` with findable blocks; returns the number of
        positions that are computed then. Takes free memory only, and never the block of the last token."""
        if self._pool.prefixes is None:
            return computed
        first = computed // self._pool.block_size
        assert first == self._settled, "computed blocks are published"
        last = reusable_blocks(len(tokens), self._pool.block_size)
        found: list[int] = []
        while first + len(found) < last and self._hold(self.key(first + len(found), tokens), found):
            pass
        if not found:
            return computed
        self._pool.give_back(self.blocks[first:], self._tenant)  # a partly filled block
        self.blocks[first:] = found
        self._settled = first + len(found)
        self._pool.prefixes.touch(self._keys[: self._settled])
        self._pool.hits += self.frozen - computed
        return self.frozen

    def withdraw(self) -> None:
        """The KV of this session may be wrong: make it unfindable."""
        self._pool.withdraw(self.blocks[: self._settled])

    def key(self, number: int, tokens: Sequence[int]) -> bytes:
        """The key of full block `number` of the committed `tokens`, in a pool that shares blocks."""
        assert self._pool.prefixes is not None
        size, keys = self._pool.block_size, self._keys
        while len(keys) <= number:
            before = keys[-1] if keys else root_key(self._tenant, self._pool.prefixes.key)
            start = len(keys) * size
            keys.append(next_key(before, self._named(start, tokens[start : start + size])))
        return keys[number]

    def _named(self, start: int, tokens: Sequence[int]) -> Sequence[int]:
        """What the KV of these tokens follows from: the tokens, and where there is a picture, its content."""
        if not self.content:
            return tokens
        return [self.content.get(start + index, token) for index, token in enumerate(tokens)]

    def _hold(self, key: bytes, found: list[int]) -> bool:
        """Hold the block with this key, if there is one and the budget allows it."""
        assert self._pool.prefixes is not None
        block = self._pool.prefixes.find(key)
        if block is None or (not self._pool.holders(block) and self._budget_left() < 1):
            return False
        self._pool.share(block, self._tenant)
        found.append(block)
        return True

    def _budget_left(self) -> int:
        """Blocks that the tenant's budget leaves."""
        if not self._budget:
            return self._pool.num_blocks
        return self._budget - self._pool.held(self._tenant)
