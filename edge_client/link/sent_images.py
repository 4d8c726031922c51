"""Which pictures the server has been sent: their files travel once, and later their names alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from opensled.core.images import Image

MOST = 256  # pictures that are remembered; a server keeps fewer. Chosen.


class SentImages:
    """Of one device. A guess: a server that has a picture no more says so, and is sent the file again."""

    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()  # the latest last

    def replace_known(self, images: Sequence[Image]) -> tuple[Image, ...]:
        """As they are to be sent: those that the server has by name alone."""
        return tuple([image.named if image.digest in self._digests else image for image in images])

    def add(self, images: Sequence[Image]) -> None:
        """A server has taken them."""
        for image in images:
            self._digests[image.digest] = None
            self._digests.move_to_end(image.digest)
        while len(self._digests) > MOST:
            self._digests.popitem(last=False)

    def forget(self, images: Sequence[Image]) -> None:
        """A server has at least one of them no more."""
        for image in images:
            self._digests.pop(image.digest, None)
