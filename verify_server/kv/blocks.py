"""Which fixed-size KV blocks hold a session's computed tokens: pure bookkeeping, no tensors.

Full blocks of committed tokens can be found by their content (verify_server/kv/prefix.py); they have as many holders
as there are sessions whose text begins so. Such a block is never written again; a session writes in blocks that it
alone holds. Given back, it stays findable until somebody needs its memory: unused blocks go first, then the one whose
last holder left longest ago.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from verify_server.kv.prefix import PrefixIndex, next_key, root_key, takeable


class OutOfBlocks(Exception):
    """The pool cannot give what was asked; the loop frees some or lets the session wait."""


class OverBudget(OutOfBlocks):
    """The tenant may hold no more than he does: only his own sessions can give way."""


class BlockPool:
    """The KV blocks of one engine, numbered from 0; a block has holders or is free."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        on_free: Callable[[Sequence[int]], object] | None = None,
        prefix_key: bytes = b"",
    ) -> None:
        """`on_free` hears of blocks whose content is lost, before anybody can take them. Content can be found with a
        `prefix_key` only; b"" = nothing is ever shared."""
        self.num_blocks = num_blocks
        self.block_size = block_size  # tokens
        self.prefixes = PrefixIndex(prefix_key) if prefix_key else None
        self.hits = 0  # tokens that were taken over instead of computed
        self.evictions = 0  # blocks that lost content which could be found
        self._on_free = on_free
        self._unused = list(range(num_blocks - 1, -1, -1))  # free, with nothing worth keeping
        self._cached: OrderedDict[int, None] = OrderedDict()  # free and findable, those used last at the end
        self._holders = [0] * num_blocks
        self._shared = 0  # blocks with several holders
        self._held: Counter[str] = Counter()  # blocks by tenant; a block's holders are all one tenant's

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, those with content that can be found included."""
        return len(self._unused) + len(self._cached)

    def states(self) -> dict[str, int]:
        """All blocks, each counted once: free without content, free with it, held by one, held by several."""
        free, cached = len(self._unused), len(self._cached)
        used = self.num_blocks - free - cached - self._shared
        return {"free": free, "cached": cached, "used": used, "shared": self._shared}

    def blocks_for(self, length: int) -> int:
        """How many blocks hold `length` tokens."""
        return -(-length // self.block_size)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def held(self, tenant: str) -> int:
        """Blocks that the tenant's sessions hold, shared ones counted once."""
        return self._held[tenant]

    def is_crowding(self, tenant: str) -> bool:
        """Whether the tenant holds more than an equal share among those who hold any."""
        return self._held[tenant] * len(self._held) > self.num_blocks

    def take(self, count: int, tenant: str = "") -> list[int]:
        """`count` free blocks; all of them or OutOfBlocks and none."""
        if count > self.num_free:
            raise OutOfBlocks(f"{count} KV blocks wanted, {self.num_free} free")
        blocks = [self._unused.pop() if self._unused else self._evict() for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        self._held[tenant] += count
        return blocks

    def share(self, block: int, tenant: str) -> None:
        """One more session holds a block that can be found."""
        assert self.prefixes is not None and block in self.prefixes, "only what can be found is shared"
        self._holders[block] += 1
        if self._holders[block] == 1:
            del self._cached[block]
            self._held[tenant] += 1
        elif self._holders[block] == 2:
            self._shared += 1

    def give_back(self, blocks: Sequence[int], tenant: str = "") -> None:
        """One holder less for each; the last ones are the first to lose their content."""
        left = [block for block in reversed(blocks) if self._leave(block)]
        self._held[tenant] -= len(left)
        if not self._held[tenant]:
            del self._held[tenant]
        findable = self.prefixes.findable(left) if self.prefixes else []
        self._cached.update(dict.fromkeys(findable))
        self._discard([block for block in left if block not in self._cached])

    def withdraw(self, blocks: Sequence[int]) -> None:
        """What these blocks hold is not to be found any more. They have holders."""
        if self.prefixes is None:
            return
        for block in self.prefixes.findable(blocks):
            self.prefixes.drop(block)
            self.evictions += 1

    def recent_prefixes(self, limit: int = 1024) -> frozenset[bytes]:
        """Keys (verify_server/kv/prefix.py) of blocks that can be found, the `limit` that were used last."""
        return self.prefixes.recent(limit) if self.prefixes else frozenset()

    def _evict(self) -> int:
        """Make the block that was left longest ago a blank one."""
        assert self.prefixes is not None
        block, _ = self._cached.popitem(last=False)
        self.prefixes.drop(block)
        self.evictions += 1
        if self._on_free is not None:
            self._on_free((block,))
        return block

    def _leave(self, block: int) -> bool:
        """One holder less; whether that was the last one."""
        count = self._holders[block]
        assert count > 0, "a KV block was given back twice"
        self._holders[block] = count - 1
        if count == 2:
            self._shared -= 1
        return count == 1

    def _discard(self, blocks: list[int]) -> None:
        if self._on_free is not None and blocks:
            self._on_free(tuple(blocks))
        self._unused.extend(blocks)


class BlockTable:
    """One session's blocks, in order: block i holds positions [i * block_size, (i + 1) * block_size)."""

    def __init__(self, pool: BlockPool, tenant: str = "", budget: int = 0) -> None:
        """`budget`: tokens of KV that all sessions of the tenant may hold together; 0 = as many as there are."""
        self.blocks: list[int] = []
        self._pool = pool
        self._tenant = tenant
        self._budget = pool.blocks_for(budget)
        self._settled = 0  # leading blocks that are never written again: others may read them
        self._keys: list[bytes] = []  # of the leading full blocks; a text only grows, so they stay right

    @property
    def frozen(self) -> int:
        """Positions [0, frozen) are never written again."""
        return self._settled * self._pool.block_size

    def grow(self, length: int) -> None:
        """Cover positions [0, length); changes nothing when it raises OutOfBlocks or OverBudget."""
        missing = self._pool.blocks_for(length) - len(self.blocks)
        if missing <= 0:
            return
        if missing > self._room():
            raise OverBudget(f"{missing} KV blocks wanted, the tenant's budget leaves {self._room()}")
        self.blocks.extend(self._pool.take(missing, self._tenant))

    def reach(self) -> int:
        """Positions [0, reach) it can cover without anybody giving way."""
        return (len(self.blocks) + min(self._pool.num_free, max(0, self._room()))) * self._pool.block_size

    def truncate(self, length: int) -> None:
        """Give back every block beyond `length` tokens. Rollback is this and nothing else."""
        assert length >= self.frozen, "what is committed is never rolled back"
        keep = self._pool.blocks_for(length)
        if keep >= len(self.blocks):
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
        """Whether positions from `start` on lie in blocks that only this session holds or reads."""
        own = self.blocks[start // self._pool.block_size :]
        return start >= self.frozen and all(self._pool.holders(block) == 1 for block in own)

    def publish(self, tokens: Sequence[int], computed: int) -> None:
        """Let others find the full blocks among positions [0, computed), which hold the committed `tokens`."""
        full, index = computed // self._pool.block_size, self._pool.prefixes
        if index is None or full <= self._settled:
            return
        for number in range(self._settled, full):
            index.add(self._key(number, tokens), self.blocks[number])
        self._settled = full

    def adopt(self, tokens: Sequence[int], computed: int) -> int:
        """Go on from `computed` positions of the committed `tokens` with blocks that can be found; returns how many
        positions are computed now. Takes free memory only, and never the last token's."""
        if self._pool.prefixes is None:
            return computed
        first = computed // self._pool.block_size
        assert first == self._settled, "what was computed is published"
        last = takeable(len(tokens), self._pool.block_size)
        found: list[int] = []
        while first + len(found) < last and self._take_over(self._key(first + len(found), tokens), found):
            pass
        if not found:
            return computed
        self._pool.give_back(self.blocks[first:], self._tenant)  # a block that was filled in part
        self.blocks[first:] = found
        self._settled = first + len(found)
        self._pool.prefixes.touch(self._keys[: self._settled])
        self._pool.hits += self.frozen - computed
        return self.frozen

    def withdraw(self) -> None:
        """What this session computed may be wrong: nobody is to find it."""
        self._pool.withdraw(self.blocks[: self._settled])

    def _take_over(self, key: bytes, found: list[int]) -> bool:
        """Hold the block with this key too, if there is one and the budget allows for it."""
        assert self._pool.prefixes is not None
        block = self._pool.prefixes.find(key)
        if block is None or (not self._pool.holders(block) and self._room() < 1):
            return False
        self._pool.share(block, self._tenant)
        found.append(block)
        return True

    def _room(self) -> int:
        """Blocks that the tenant's budget leaves."""
        if not self._budget:
            return self._pool.num_blocks
        return self._budget - self._pool.held(self._tenant)

    def _key(self, number: int, tokens: Sequence[int]) -> bytes:
        """The key of full block `number` of `tokens`."""
        assert self._pool.prefixes is not None
        size, keys = self._pool.block_size, self._keys
        while len(keys) <= number:
            before = keys[-1] if keys else root_key(self._tenant, self._pool.prefixes.key)
            keys.append(next_key(before, tokens[len(keys) * size : (len(keys) + 1) * size]))
        return keys[number]
