"""From the file of a picture, which comes from a stranger, to its pixels: a few formats, under limits.

What a file says of its size is checked before a pixel is decoded, so that a bomb (a small file of a huge picture) costs
nothing. Decoded pictures are at most MAX_PIXELS large, which bounds time and memory.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageOps

from opensled.core.errors import InvalidRequest, first_line
from opensled.core.images import FORMATS, MAX_PIXELS, MAX_SIDE, require_format

PIXELS = (b"tRNS", b"eXIf", b"acTL")  # chunks of a PNG that count, beside those that no decoder may skip
WHITE = (255, 255, 255, 255)  # what shows through a transparent picture
# Rows of a PNG as Pillow names them -> its transparent colour, which keeps the file's scale, in that of the pixels
CLEAR = {
    "L;2": lambda grey: grey * 85,
    "L;4": lambda grey: grey * 17,
    "RGB;16B": lambda colour: tuple([each >> 8 for each in colour]),
}


def pixels_of(data: bytes) -> NDArray[np.uint8]:
    """[height, width, 3] red, green and blue of a picture, upright. Raises InvalidRequest for `images`.

    Calls decoders in C: for seconds of processor time at most, but not on an event loop.
    """
    require_format(data, "images")
    try:
        with Pillow.open(BytesIO(data), formats=tuple(FORMATS.values())) as picture:
            _require_size(picture)
            rows = picture.tile[0].args if picture.tile else ""
            picture.load()
            with suppress(Exception):  # broken metadata turns nothing
                ImageOps.exif_transpose(picture, in_place=True)
            return np.asarray(_opaque(_eight_bits(picture, rows)), np.uint8)
    except InvalidRequest:
        raise
    except Exception as error:  # decoders raise errors of many kinds for a file that is none
        if len(bare := _bare(data)) < len(data):
            return pixels_of(bare)
        raise InvalidRequest(f"an image cannot be decoded: {first_line(error)}", "images") from error


def _bare(data: bytes) -> bytes:
    """A PNG without texts and other words about it, which may be too large or damaged; another file as it is."""
    file, kept = BytesIO(data), [data[:8]]
    if FORMATS.get(file.read(8)) != "PNG":
        return data
    while head := file.read(8):
        body = file.read(int.from_bytes(head[:4], "big") + 4)
        is_whole = zlib.crc32(head[4:] + body[:-4]) == int.from_bytes(body[-4:], "big")
        if head[4:5].isupper() or (head[4:] in PIXELS and is_whole):
            kept += [head, body]
    return b"".join(kept)


def _require_size(picture: Pillow.Image) -> None:
    width, height = picture.size
    if width < 1 or height < 1:
        raise InvalidRequest(f"an image of {width} x {height} pixels is empty", "images")
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise InvalidRequest(
            f"an image of {width} x {height} pixels; the maximum is {MAX_SIDE} on a side and {MAX_PIXELS} in all: "
            "make it smaller",
            "images",
        )
    # Cameras put other views of a photo behind it, and name the file JPEG.
    if getattr(picture, "n_frames", 1) > 1 and picture.format != "MPO":
        raise InvalidRequest("animated images are not supported; send one frame", "images")


def _eight_bits(picture: Pillow.Image, rows: object) -> Pillow.Image:
    """With 8 bits for each value: Pillow itself cuts off what is above, so that grey of 16 bits becomes white."""
    clear = picture.info.get("transparency")
    if picture.mode.startswith("I"):
        deep = np.asarray(picture, np.uint16)
        return Pillow.fromarray(np.dstack((deep >> 8, 255 * (deep != clear))).astype(np.uint8), "LA")
    if clear is not None and rows in CLEAR:
        picture.info["transparency"] = CLEAR[rows](clear)
    return picture


def _opaque(picture: Pillow.Image) -> Pillow.Image:
    """In three colours, what is transparent in white."""
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    whole = picture.convert("RGBA")
    return Pillow.alpha_composite(Pillow.new("RGBA", whole.size, WHITE), whole).convert("RGB")
