"""The pictures of a server: what its target sees in each, by tenant and digest, so that a file is sent and seen once.

A session holds the rows of its pictures as long as it lives, for its KV may have to be computed again. Beside those,
the rows of pictures that were used last are kept for the next question, or for a device that comes back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from opensled.core.errors import InvalidRequest, MissingImage, Overloaded
from opensled.core.images import Image, content_ids, digest_of
from verify_server.access.tenant_pool import Spent, TenantPool

# Bytes of rows: beside those of sessions, and in all. Chosen: 50 pictures of a large target (576 rows of 4,096
# dimensions in 16 bits), and 200.
MAX_KEPT, MAX_HELD = 256 << 20, 1 << 30
THREADS, EACH = 2, 1  # that decode and see, and of these for one tenant. Chosen.

See = Callable[[NDArray[np.uint8]], Any]  # pixels [height, width, 3] -> rows [positions, size]


class SeenImage:
    """What the target sees in a picture."""

    def __init__(self, image: Image, rows: Any) -> None:
        """`rows`: see `TargetEngine.see`."""
        self.digest, self.rows = image.digest, rows
        self.content = content_ids(image, len(rows))  # what stands for each row in the keys of KV blocks

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.rows.nbytes)


class PlacedRows(NamedTuple):
    """A picture in the prompt of a session."""

    first: int  # position of its first row
    seen: SeenImage


def content_of(images: Sequence[PlacedRows]) -> dict[int, int]:
    """By position, what the KV of pictures follows from: see `BlockTable`."""
    return {first + index: id for first, seen in images for index, id in enumerate(seen.content)}


class ImageStore:
    """Tenants share nothing: not even how quickly a picture is known tells of another tenant's."""

    def __init__(self, see: See, max_kept: int = MAX_KEPT, max_held: int = MAX_HELD) -> None:
        self._see, self._max_kept, self._max_held = see, max_kept, max_held
        self._kept: dict[str, OrderedDict[bytes, SeenImage]] = {}  # by tenant, least recently used first
        self.held = 0  # bytes of all rows that are kept or in sessions
        self.seen_total = 0  # pictures that the target has looked at
        self._coming: dict[tuple[str, bytes], asyncio.Task[SeenImage]] = {}  # by tenant and digest
        self._pool = TenantPool("image", THREADS, EACH)

    async def look_up(self, image: Image, tenant: str, spent: Spent | None = None) -> SeenImage:
        """What the target sees in a picture; `spent` is told the seconds that it took.

        Raises MissingImage for a picture that is only named and not known, InvalidRequest for one that cannot be
        decoded, Overloaded while sessions hold too many.
        """
        kept = self._kept.get(tenant)
        found = kept.get(image.digest) if kept else None
        if kept and found:
            kept.move_to_end(image.digest)
        return found or await self._first_look(image, tenant, spent)

    def close(self) -> None:
        """End its threads."""
        self._pool.close()

    async def _first_look(self, image: Image, tenant: str, spent: Spent | None) -> SeenImage:
        """All who ask meanwhile get the same. A device that goes and comes back finds what it began."""
        key = tenant, image.digest
        coming = self._coming.get(key)
        if coming is None:
            self._require_room(image)
            coming = self._coming[key] = asyncio.ensure_future(self._new(image, tenant, spent))
            coming.add_done_callback(lambda done: self._came(key, done))
        return await asyncio.shield(coming)

    def _came(self, key: tuple[str, bytes], done: asyncio.Task[SeenImage]) -> None:
        del self._coming[key]
        if not done.cancelled() and done.exception() is None:
            self._keep(key[0], done.result())

    def _require_room(self, image: Image) -> None:
        if not image.data:
            raise MissingImage("this server has no image of that digest (any more); send its file", "images")
        if self.held > self._max_held:
            raise Overloaded("the images of other sequences fill this server; try again", retry_after=1.0)

    async def _new(self, image: Image, tenant: str, spent: Spent | None) -> SeenImage:
        seen = await self._pool.run(tenant, partial(self._look, image), spent)
        self.seen_total += 1
        self.held += seen.size
        finalize(seen, self._release, seen.size).atexit = False
        return seen

    def _release(self, size: int) -> None:
        """Nobody needs a picture of so many bytes any more."""
        self.held -= size

    def _look(self, image: Image) -> SeenImage:
        if digest_of(image.data) != image.digest:
            raise InvalidRequest("the digest of an image does not match its file", "images")
        # With Pillow, which a server of texts alone does without
        from verify_server.vision.decoding import pixels_of

        return SeenImage(image, self._see(pixels_of(image.data)))

    def _keep(self, tenant: str, seen: SeenImage) -> None:
        """As the one that was used last; others make room, of the tenant with most bytes first."""
        kept = self._kept.setdefault(tenant, OrderedDict())
        kept[seen.digest] = seen
        kept.move_to_end(seen.digest)
        while sum(map(_size, self._kept.values())) > self._max_kept:
            fullest = max(self._kept, key=lambda name: _size(self._kept[name]))
            self._kept[fullest].popitem(last=False)
            if not self._kept[fullest]:
                del self._kept[fullest]


def _size(kept: OrderedDict[bytes, SeenImage]) -> int:
    return sum([seen.size for seen in kept.values()])
