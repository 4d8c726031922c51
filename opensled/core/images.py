"""Pictures in a prompt: what crosses the wire, what a device checks of a file, and what names a picture in a key.

A picture is content-addressed media: its name is the digest of the file. A device never decodes one. It sends the file
once; a server that has it already is sent the name alone. In the prompt's token ids a picture is a run of one id, the
placeholder, with an id for each row of embeddings that the target makes of it, so that positions stay positions.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import unquote

from opensled.core.errors import InvalidRequest, NotFound, Unsupported
from opensled.core.files import user_path

MAX_IMAGES = 8  # of one prompt (chosen: a doorbell's last pictures)
MAX_IMAGE_BYTES = 8 << 20  # of one file (chosen: a photo of 12 million pixels as JPEG)
MAX_PROMPT_IMAGE_BYTES = 16 << 20  # of all files of a prompt
MAX_PIXELS = 16_000_000  # of one picture; decoded, 48 MB
MAX_SIDE = 8192  # pixels: no picture that people take is wider
DIGEST_BYTES = 32

# The letters in which the alphabets of base64 differ, from that of URLs to the other one.
URL_SAFE = str.maketrans("-_", "+/")

# What a file begins with, and the name of its format. Others are refused: each decoder is a way in for an attacker.
FORMATS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WEBP"}


def digest_of(data: bytes) -> bytes:
    """The name of a picture: BLAKE2b-256 of its file."""
    return blake2b(data, digest_size=DIGEST_BYTES, person=b"opensled-image").digest()


@dataclass(frozen=True)
class Image:
    """A picture of a prompt."""

    digest: bytes
    data: bytes = field(default=b"", repr=False)  # the file; b"" = it was sent before, and the name is enough

    @property
    def named(self) -> Image:
        """The name alone."""
        return Image(self.digest)


class TurnImage(NamedTuple):
    """A picture in a turn of a chat."""

    offset: int  # characters of the content before it
    image: Image


@dataclass(frozen=True)
class ImageFacts:
    """What a target makes of pictures."""

    token_id: int  # the placeholder
    rows: int  # embeddings, and so positions, of a picture
    most: int = MAX_IMAGES  # pictures of a prompt
    max_bytes: int = MAX_IMAGE_BYTES  # of one file


def starts_of(ids: Sequence[int], images: Sequence[Image], facts: ImageFacts | None) -> tuple[int, ...]:
    """The position of the first row of each of `images` in a prompt whose placeholders are expanded.

    Raises InvalidRequest unless the placeholders are whole runs, one for each picture.
    """
    if facts is None:
        require_none(images)
        return ()
    starts = [position for position, token in enumerate(ids) if token == facts.token_id][:: facts.rows]
    total = sum(token == facts.token_id for token in ids)
    whole = all(set(ids[start : start + facts.rows]) == {facts.token_id} for start in starts)
    if total != len(images) * facts.rows or not whole:
        raise InvalidRequest(
            f"the prompt has {total} placeholders (id {facts.token_id}) for {len(images)} images of {facts.rows} "
            "positions each",
            "images",
        )
    return tuple(starts)


def expand(ids: Sequence[int], images: Sequence[Image], facts: ImageFacts | None) -> tuple[int, ...]:
    """A rendered prompt, which has one placeholder for each picture, with all positions of each.

    Raises InvalidRequest where the text itself has the placeholder of the target.
    """
    if facts is None:
        require_none(images)
        return tuple(ids)
    found = sum(token == facts.token_id for token in ids)
    if found != len(images):
        raise InvalidRequest(
            f"the prompt has {found} placeholders for {len(images)} images: a text cannot hold the target's own "
            "placeholder",
            "images",
        )
    return tuple(token for token in ids for _ in range(facts.rows if token == facts.token_id else 1))


def require_none(images: Sequence[Image]) -> None:
    """Raises Unsupported for a picture where the target reads text alone."""
    if images:
        raise Unsupported(
            "this target reads text only, no images; use a server with a vision-language model", "images"
        )


def content_ids(image: Image, rows: int) -> list[int]:
    """What stands for each position of a picture in the keys of KV blocks: below 0, so that it equals no token id.

    Two pictures share nothing, though their placeholders are equal.
    """
    stream = b"".join(
        blake2b(image.digest + number.to_bytes(4, "little"), digest_size=64).digest()
        for number in range(-(-rows // 8))
    )
    words = [int.from_bytes(stream[at : at + 8], "little") for at in range(0, 8 * rows, 8)]
    return [-1 - (word >> 1) for word in words]


# -- what a device is given -----------------------------------------------------------------------------------


def image_from(data: bytes, where: str) -> Image:
    """A picture from the bytes of its file. Raises InvalidRequest for `where`: too large, or no picture."""
    if len(data) > MAX_IMAGE_BYTES:
        raise InvalidRequest(
            f"{where}: an image of {len(data)} bytes; at most {MAX_IMAGE_BYTES} are taken: make it smaller",
            where,
        )
    require_format(data, where)
    return Image(digest_of(data), data)


def require_format(data: bytes, where: str) -> None:
    """Raises InvalidRequest for `where` unless the bytes begin like a picture that can be read."""
    if not any(data.startswith(magic) for magic in FORMATS) or (
        data[:4] == b"RIFF" and data[8:12] != b"WEBP"
    ):
        kinds = ", ".join(FORMATS.values())
        raise InvalidRequest(f"{where} is not a readable image; send one of {kinds}", where)


def image_file(path: str) -> Image:
    """The picture in a file. Raises NotFound, or InvalidRequest as `image_from` does."""
    try:
        with user_path(path).open("rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}", "image") from error
    return image_from(data, path)


def image_url(url: str, where: str) -> Image:
    """The picture in a data URL (RFC 2397, base64). Raises Unsupported for any other URL, InvalidRequest else."""
    head, comma, body = url.partition(",")
    head = head.strip().lower()
    if not head.startswith("data:"):
        raise Unsupported(
            f"{where} must be a data URL (data:image/png;base64,...): OpenSLED fetches nothing from other addresses, "
            "because users could then reach machines that only the device may reach",
            where,
        )
    if not comma or not head.endswith(";base64"):
        raise InvalidRequest(f"{where} is not a base64 data URL (data:image/png;base64,...)", where)
    return image_base64(unquote(body), where)


def image_base64(text: str, where: str) -> Image:
    """The picture in base64, of either alphabet (RFC 4648), in lines or in one, with or without padding.

    Raises InvalidRequest for `where`.
    """
    text = "".join(text.split()).rstrip("=").translate(URL_SAFE)
    if len(text) > 4 * MAX_IMAGE_BYTES // 3 + 4:
        raise InvalidRequest(
            f"{where}: at most {MAX_IMAGE_BYTES} bytes are taken: make the image smaller", where
        )
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(
            f"{where} holds no valid base64 ({error}): encode the bytes of the file again", where
        ) from error
    return image_from(data, where)
