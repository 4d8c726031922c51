"""Pictures in a prompt: see verify_server/vision/image_store.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from verify_server.engine.base import ImageRows, Segment
from verify_server.riders.opening import Opening
from verify_server.round.rider import Rider
from verify_server.vision.image_store import PlacedRows, content_of


class PromptImages(Rider):
    """Holds their rows as long as the session lives, for its KV may have to be computed again."""

    def __init__(self, images: Sequence[PlacedRows]) -> None:
        self._images = tuple(images)

    @classmethod
    async def of(cls, opening: Opening) -> PromptImages | None:
        """See `RIDERS`."""
        images = await opening.inputs.images(
            opening.message, opening.prompt_ids, opening.tenant, opening.spent
        )
        return cls(images) if images else None

    @property
    def content(self) -> Mapping[int, int]:
        """Of the positions of all pictures."""
        return content_of(self._images)

    def segment(self, segment: Segment, stop: int) -> Segment:
        """With the pictures that have positions in it or behind it."""
        ahead = [
            ImageRows(first, seen.rows)
            for first, seen in self._images
            if segment.start < first + len(seen.content)
        ]
        return segment._replace(images=tuple(ahead))
