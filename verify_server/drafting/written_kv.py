"""Which tokens' KV a draft model has in which block: the blocks are the target's, the KV in them is the draft's own.

The target's side of a block says nothing of the draft's: a session may adopt blocks of which the draft read nothing,
lose blocks and get them back, or roll back half of one. So each block is known by its content, which holds for all of
these: the hash of the text before it, and the ids in it. For the rows of a picture stands what `Ask.content` says: its
placeholders are the same ids in every text.

Hashes begin with whose text it is. A block that one tenant gives back and another one gets may hold the very text that
the other one asks about; if it counted as read, drafts that come sooner would tell that.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from opensled.core.protocol import common_prefix
from verify_server.round.drafter import Ask


class Written(NamedTuple):
    """What is in a block."""

    before: int  # hash of the text before it
    ids: tuple[int, ...]
    after: int  # hash of the text up to its end; 0 where it is not full


class TextHashes:
    """Hashes of the beginnings of one session's text, block by block; `first`: that of no text."""

    def __init__(self, first: int) -> None:
        self._hashes = [first]

    def before(self, block: int, ask: Ask, size: int) -> int:
        """Of the text before its block number `block`, which is a full one or the last."""
        hashes = self._hashes
        while len(hashes) <= block:
            start = (len(hashes) - 1) * size
            hashes.append(after(hashes[-1], _ids(ask, start, size)))
        return hashes[block]


class WrittenKV:
    """Of all blocks of a server. A wrong entry could make drafts worse, and change no text."""

    def __init__(self, block_size: int, shared: bool = True) -> None:
        """`shared`: between sessions of a tenant; else what one of them wrote is read by itself alone."""
        self._size, self._shared = block_size, shared
        self._secret = secrets.token_bytes(16)  # so that nobody finds two texts with one hash
        self._blocks: dict[int, Written] = {}
        self._texts: dict[int, TextHashes] = {}  # by session

    def count_computed(self, ask: Ask) -> int:
        """Positions of a session's text whose KV is there; not the last one, which is computed anew."""
        size, last = self._size, ask.length - 1
        place = 0
        for number, block in enumerate(ask.blocks):
            written, before = self._blocks.get(block), self._hash(ask, number)
            if written is None or written.before != before:
                break
            if written.after and (number + 1) * size <= last and written.after == self._hash(ask, number + 1):
                place += size
                continue
            place += common_prefix(written.ids, _ids(ask, place, size))
            break
        return min(place, last)

    def write(self, ask: Ask, start: int, fed: Sequence[int]) -> None:
        """From position `start` of the text on, its blocks hold the ids `fed`, and nothing beyond."""
        size = self._size
        first = start // size
        named = [ask.content.get(start + index, id) for index, id in enumerate(fed)] if ask.content else fed
        ids = [*_ids(ask, first * size, size)[: start - first * size], *named]
        before = self._hash(ask, first)
        for number in range(first, len(ask.blocks)):
            own = tuple(ids[(number - first) * size : (number - first + 1) * size])
            then = after(before, own) if len(own) == size else 0
            self._blocks[ask.blocks[number]] = Written(before, own, then)
            before = then

    def free(self, block: int) -> None:
        """Its content is lost."""
        self._blocks.pop(block, None)

    def forget(self, session: int) -> None:
        """The session is over; what its blocks hold stays true."""
        self._texts.pop(session, None)

    def _hash(self, ask: Ask, number: int) -> int:
        text = self._texts.get(ask.session)
        if text is None:
            whose = ask.tenant if self._shared else ask.session
            text = self._texts[ask.session] = TextHashes(hash((self._secret, whose)))
        return text.before(number, ask, self._size)


def after(before: int, ids: Iterable[int]) -> int:
    """The hash of a text that goes on with a block of `ids`."""
    return hash((before, *ids)) or 1


def _ids(ask: Ask, start: int, size: int) -> tuple[int, ...]:
    """A block's ids of the text; of a picture, what stands for its rows."""
    ids = tuple(ask.tokens[start : start + size])
    if not ask.content:
        return ids
    return tuple([ask.content.get(start + index, id) for index, id in enumerate(ids)])
