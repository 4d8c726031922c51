"""Which fixed-size KV blocks hold a session's computed tokens: bookkeeping only, no tensors.

`BlockPool` says who holds which block, `BlockTable` has the blocks of one session, in order.

Full blocks of committed tokens can be found by their content (verify_server/kv/prefix.py); their holders are all
sessions whose text begins with it. Such a block is never written again; a session writes only in blocks that no other
one holds. A block without holders stays findable until its memory is needed: blank blocks are taken first, then those
that are lent to a draft model (guests.py), then the least recently used.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence

from verify_server.kv.memory import NOTHING, SequenceMemory
from verify_server.kv.prefix import PrefixIndex, next_key, reusable_blocks, root_key


class OutOfBlocks(Exception):
    """The pool has too few free blocks; the loop frees some or lets the session wait."""


class OverBudget(OutOfBlocks):
    """The tenant is at its KV budget: only its own sessions can be preempted."""


class BlockPool:
    """The KV blocks of one engine, numbered from 0; a block has holders or is free."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        on_free: Callable[[Sequence[int]], object] | None = None,
        prefix_key: bytes = b"",
        on_rest: Callable[[Sequence[int]], object] | None = None,
    ) -> None:
        """Calls `on_free` with blocks whose content is lost, before they can be taken again. `prefix_key`: secret of
        the prefix keys; b"" = no block is ever shared. `on_rest`: called with blocks that have lost their last holder
        and can still be found."""
        self.num_blocks = num_blocks
        self.block_size = block_size  # tokens
        self.prefixes = PrefixIndex(prefix_key) if prefix_key else None
        self.hits = 0  # tokens that were reused instead of computed
        self.evictions = 0  # blocks that lost content that could be found
        self._on_free = on_free
        self._on_rest = on_rest
        self._unused = list(range(num_blocks - 1, -1, -1))  # free and blank
        self._cached: OrderedDict[int, None] = OrderedDict()  # free and findable, least recently used first
        self._holders = [0] * num_blocks
        self._shared = 0  # blocks with several holders
        self._held: Counter[str] = Counter()  # blocks by tenant; a block's holders are all one tenant's
        self._kept: list[int] | None = None  # blank, but nobody may take them yet; see `keep_freed`
        self.lent = 0  # blocks at a draft model, which are free to all others
        self.reclaim: Callable[[], int] = self._evict  # the draft model gives one of them back

    @property
    def num_free(self) -> int:
        """Blocks without holders, findable and lent ones included."""
        return len(self._unused) + self.lent + len(self._cached)

    def states(self) -> dict[str, int]:
        """All blocks, each counted once: blank, free and findable, held by one session, held by several."""
        free, cached = len(self._unused) + self.lent + len(self._kept or ()), len(self._cached)
        used = self.num_blocks - free - cached - self._shared
        return {"free": free, "cached": cached, "used": used, "shared": self._shared}

    def blocks_for(self, length: int) -> int:
        """How many blocks hold `length` tokens."""
        return -(-length // self.block_size)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def count_held(self, tenant: str) -> int:
        """Blocks that the tenant's sessions hold, shared ones counted once."""
        return self._held[tenant]

    def is_over_share(self, tenant: str) -> bool:
        """Whether the tenant holds more than an equal share among the tenants with blocks."""
        return self._held[tenant] * len(self._held) > self.num_blocks

    def take(self, count: int, tenant: str = "") -> list[int]:
        """Take `count` free blocks; takes none if it raises OutOfBlocks."""
        if count > self.num_free:
            raise OutOfBlocks(f"{count} KV blocks wanted, {self.num_free} free")
        blocks = [self._blank_one() for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
        self._held[tenant] += count
        return blocks

    def _blank_one(self) -> int:
        """A draft model loses its KV before anything that can be found is lost."""
        return self._unused.pop() if self._unused else self.reclaim() if self.lent else self._evict()

    def lend(self, count: int, findable: bool) -> list[int]:
        """Up to `count` blocks for a draft model, which `reclaim` gives back: blank ones, or `findable` ones too."""
        most = len(self._unused) + findable * len(self._cached)
        blocks = [self._unused.pop() if self._unused else self._evict() for _ in range(min(count, most))]
        self.lent += len(blocks)
        return blocks

    def share(self, block: int, tenant: str) -> None:
        """One more session holds a block that can be found."""
        assert self.prefixes is not None and block in self.prefixes, "only findable blocks are shared"
        self._holders[block] += 1
        if self._holders[block] == 1:
            del self._cached[block]
            self._held[tenant] += 1
        elif self._holders[block] == 2:
            self._shared += 1

    def give_back(self, blocks: Sequence[int], tenant: str = "") -> None:
        """One holder less for each; the last blocks lose their content first."""
        left = [block for block in reversed(blocks) if self._leave(block)]
        self._held[tenant] -= len(left)
        if not self._held[tenant]:
            del self._held[tenant]
        findable = self.prefixes.findable(left) if self.prefixes else []
        self._cached.update(dict.fromkeys(findable))
        blank = [block for block in left if block not in self._cached]
        if self._on_rest is not None and findable:
            self._on_rest(tuple(findable))
        if self._kept is not None:
            self._kept += blank
        else:
            self._blank(blank)

    def keep_freed(self) -> None:
        """What becomes blank from now on can be taken, and is announced, only after `release_freed`: somebody may still
        write there."""
        if self._kept is None:
            self._kept = []

    def release_freed(self) -> None:
        """Nobody writes there any more."""
        blocks, self._kept = self._kept or [], None
        self._blank(blocks)

    def _blank(self, blocks: Sequence[int]) -> None:
        if self._on_free is not None and blocks:
            self._on_free(tuple(blocks))
        self._unused.extend(blocks)

    def withdraw(self, blocks: Sequence[int]) -> None:
        """Make the content of these blocks, which have holders, unfindable."""
        if self.prefixes is None:
            return
        for block in self.prefixes.findable(blocks):
            self.prefixes.drop(block)
            self.evictions += 1

    def recent_prefixes(self, limit: int = 1024) -> frozenset[bytes]:
        """Keys (verify_server/kv/prefix.py) of the `limit` findable blocks that were used last."""
        return self.prefixes.recent(limit) if self.prefixes else frozenset()

    def _evict(self) -> int:
        """A blank block, from the least recently used findable one."""
        block = self._forgotten()
        if self._on_free is not None:
            self._on_free((block,))
        return block

    def _forgotten(self) -> int:
        """The least recently used findable block, which is so no more."""
        assert self.prefixes is not None
        block, _ = self._cached.popitem(last=False)
        self.prefixes.drop(block)
        self.evictions += 1
        return block

    def _leave(self, block: int) -> bool:
        """One holder less; returns whether that was the last one."""
        count = self._holders[block]
        assert count > 0, "a KV block was given back twice"
        self._holders[block] = count - 1
        if count == 2:
            self._shared -= 1
        return count == 1


class BlockTable(SequenceMemory):
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
        self.content = content or NOTHING
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
            keys.append(next_key(before, self._content_of(start, tokens[start : start + size])))
        return keys[number]

    def _content_of(self, start: int, tokens: Sequence[int]) -> Sequence[int]:
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
        return self._budget - self._pool.count_held(self._tenant)
