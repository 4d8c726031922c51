"""Which KV blocks hold the beginnings of texts, found by their content: so that sessions that begin alike share them.

A full block's key is a hash of its tokens and of the key of the block before it, so it stands for all that comes
before as well. The first one is salted with the tenant, keyed with a secret: nobody can find out by how soon his first
token comes what other tenants' prompts are. Only tokens that are committed get keys, never those of a draft.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice

KEY_BYTES = 16


def root_key(tenant: str, key: bytes) -> bytes:
    """What a tenant's first block is chained to; `key` has 1 to 64 bytes."""
    return blake2b(tenant.encode(), key=key, digest_size=KEY_BYTES, person=b"opensled-kv").digest()


def next_key(before: bytes, tokens: Sequence[int]) -> bytes:
    """The key of the block that holds `tokens`, after the block (or the root) with the key `before`."""
    return blake2b(before + array("q", tokens).tobytes(), digest_size=KEY_BYTES).digest()


def takeable(length: int, block_size: int) -> int:
    """How many full blocks a session with `length` tokens may take over: it computes its last one itself."""
    return max(0, length - 1) // block_size


def prefix_keys(tokens: Sequence[int], tenant: str, key: bytes, block_size: int = 16) -> tuple[bytes, ...]:
    """Keys of the blocks that a session with `tokens` could take over, from the first on, where `key` is used."""
    keys, before = [], root_key(tenant, key)
    for number in range(takeable(len(tokens), block_size)):
        before = next_key(before, tokens[number * block_size : (number + 1) * block_size])
        keys.append(before)
    return tuple(keys)


class PrefixIndex:
    """Blocks by key and keys by block, those that were used last at the end."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._blocks: OrderedDict[bytes, int] = OrderedDict()
        self._keys: dict[int, bytes] = {}

    def __contains__(self, block: int) -> bool:
        """Whether this block can be found."""
        return block in self._keys

    def find(self, key: bytes) -> int | None:
        return self._blocks.get(key)

    def add(self, key: bytes, block: int) -> None:
        """From now on `block` can be found; nothing happens if another one with the same content can."""
        assert block not in self._keys, "a KV block can be found by one key"
        if self._blocks.setdefault(key, block) == block:
            self._keys[block] = key

    def drop(self, block: int) -> None:
        """`block` cannot be found any more."""
        del self._blocks[self._keys.pop(block)]

    def touch(self, keys: Sequence[bytes]) -> None:
        """These are used now; a beginning counts as used after what follows it, which is of no use without it."""
        for key in reversed(keys):
            if key in self._blocks:
                self._blocks.move_to_end(key)

    def recent(self, limit: int) -> frozenset[bytes]:
        """The `limit` keys that were used last."""
        return frozenset(islice(reversed(self._blocks), limit))

    def findable(self, blocks: Iterable[int]) -> list[int]:
        return [block for block in blocks if block in self._keys]
