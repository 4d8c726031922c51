"""Finds KV blocks by their content, so that sessions share the blocks of a common prefix.

A full block's key is a hash of its tokens and of the key of the block before it, so it stands for the whole prefix. The
first hash includes the tenant and is keyed with a secret: the time to the first token reveals nothing about the prompts
of other tenants. Only committed tokens get keys, never those of a draft.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice

KEY_BYTES = 16  # 128 bits: collisions are out of reach


def root_key(tenant: str, key: bytes) -> bytes:
    """The start of a tenant's chain of keys; `key` has 1 to 64 bytes."""
    return blake2b(tenant.encode(), key=key, digest_size=KEY_BYTES, person=b"opensled-kv").digest()


def next_key(before: bytes, tokens: Sequence[int]) -> bytes:
    """The key of the block that holds `tokens`, after the block (or the root) with the key `before`."""
    return blake2b(before + array("q", tokens).tobytes(), digest_size=KEY_BYTES).digest()


def reusable_blocks(length: int, block_size: int) -> int:
    """Full blocks that a session with `length` tokens may reuse; it always computes its last token itself."""
    return max(0, length - 1) // block_size


def prefix_keys(tokens: Sequence[int], tenant: str, key: bytes, block_size: int = 16) -> tuple[bytes, ...]:
    """Keys of the blocks that a session with `tokens` could reuse, in order, if `key` is the secret."""
    keys, before = [], root_key(tenant, key)
    for number in range(reusable_blocks(len(tokens), block_size)):
        before = next_key(before, tokens[number * block_size : (number + 1) * block_size])
        keys.append(before)
    return tuple(keys)


class PrefixIndex:
    """Blocks by key, least recently used first, and keys by block."""

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
        """Make `block` findable; does nothing if another block with the same content is."""
        assert block not in self._keys, "a KV block has one key"
        if self._blocks.setdefault(key, block) == block:
            self._keys[block] = key

    def drop(self, block: int) -> None:
        """Make `block` unfindable."""
        del self._blocks[self._keys.pop(block)]

    def touch(self, keys: Sequence[bytes]) -> None:
        """Mark keys as used; a prefix counts as used after its continuation, which is useless without it."""
        for key in reversed(keys):
            if key in self._blocks:
                self._blocks.move_to_end(key)

    def recent(self, limit: int) -> frozenset[bytes]:
        """The `limit` most recently used keys."""
        return frozenset(islice(reversed(self._blocks), limit))

    def findable(self, blocks: Iterable[int]) -> list[int]:
        return [block for block in blocks if block in self._keys]
