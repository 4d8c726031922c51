"""Pictures of strangers: what a device refuses unread, and what the server refuses of a file that it decodes."""

from __future__ import annotations

import base64
import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image as Pillow

from opensled.core import images
from opensled.core.errors import InvalidRequest, NotFound, Unsupported
from opensled.core.images import MAX_PIXELS, MAX_SIDE, Image, ImageFacts, expand, starts_of
from tests.vision_models import picture
from verify_server.vision.decoding import pixels_of

FACTS = ImageFacts(token_id=7, rows=3)
ONE, TWO = Image(b"1" * 32), Image(b"2" * 32)


def png(width: int, height: int, body: bytes = b"") -> bytes:
    """A PNG file that says to be so large, whatever follows."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


def animated(kind: str) -> bytes:
    frames = [Pillow.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    file = BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    return file.getvalue()


HOSTILE = {
    "no picture": (b"<script>", "not a readable image"),
    "empty": (b"", "not a readable image"),
    "the head alone": (picture(0)[:8], "cannot be decoded"),
    "truncated": (picture(0)[:-400], "cannot be decoded"),
    "0 x 0": (png(0, 0), "cannot be decoded"),
    "20,000 pixels wide": (png(20_000, 1), "20000 x 1"),
    "a bomb": (png(MAX_SIDE, MAX_SIDE), f"{MAX_SIDE} x {MAX_SIDE}"),
    "a bomb beyond every number": (png(2**31 - 1, 2**31 - 1), "2147483647|cannot be decoded"),
    "fewer pixels than it says": (png(2_000, 2_000, b"\0" * 100), "cannot be decoded"),
    "an animated PNG": (animated("PNG"), "animated"),
    "an animated WebP": (animated("WEBP"), "animated"),
    "a GIF": (animated("GIF"), "not a readable image"),
    "a sound in RIFF": (b"RIFF\x04\0\0\0WAVEfmt ", "not a readable image"),
    "WebP that ends": (picture(0, "WEBP")[:40], "cannot be decoded"),
    "JPEG that ends": (picture(0, "JPEG")[:200], "cannot be decoded"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name):
    data, words = HOSTILE[name]
    with pytest.raises(InvalidRequest, match=words) as caught:
        pixels_of(data)
    assert caught.value.field == "images"


def test_a_bomb_is_refused_before_a_pixel_is_decoded(monkeypatch):
    monkeypatch.setattr(Pillow.Image, "load", lambda picture: pytest.fail("decoded"))
    with pytest.raises(InvalidRequest, match=f"the maximum is {MAX_SIDE} on a side and {MAX_PIXELS} in all"):
        pixels_of(png(MAX_SIDE, MAX_SIDE))


@pytest.mark.parametrize("kind", images.FORMATS.values())
def test_pictures_have_their_pixels(kind):
    pixels = pixels_of(picture(3, kind, 40, 30))
    assert pixels.shape == (30, 40, 3) and pixels.dtype == np.uint8
    if kind == "PNG":
        assert np.array_equal(pixels, np.random.default_rng(3).integers(0, 256, (30, 40, 3), np.uint8))


def test_a_photo_that_lies_on_its_side_is_set_upright_and_transparency_is_white():
    lying, clear = BytesIO(), BytesIO()
    tags = Pillow.Exif()
    tags[0x0112] = 6  # turned by a quarter
    Pillow.new("RGB", (40, 30)).save(lying, "JPEG", exif=tags)
    Pillow.new("RGBA", (4, 4), (255, 0, 0, 0)).save(clear, "PNG")
    assert pixels_of(lying.getvalue()).shape == (40, 30, 3)
    assert (pixels_of(clear.getvalue()) == 255).all()


# -- places ---------------------------------------------------------------------------------------------------


def test_one_placeholder_becomes_all_positions_of_its_picture():
    assert expand([1, 7, 2, 7], [ONE, TWO], FACTS) == (1, 7, 7, 7, 2, 7, 7, 7)
    assert starts_of([7, 7, 7, 7, 7, 7, 1], [ONE, TWO], FACTS) == (0, 3)
    for ids in ([7, 7, 1, 7], [7, 7, 7], [1, 2], [7, 1, 7, 7, 7, 7]):
        with pytest.raises(InvalidRequest, match="for 2 images"):
            starts_of(ids, [ONE, TWO], FACTS)
    with pytest.raises(InvalidRequest, match="own placeholder"):
        expand([1, 7, 7], [ONE], FACTS)
    with pytest.raises(Unsupported, match="text only"):
        expand([1], [ONE], None)


def test_contents_of_pictures_are_no_tokens_and_differ_in_every_position():
    first, second = images.content_ids(ONE, 9), images.content_ids(TWO, 9)
    assert len({*first, *second}) == 18 and max(*first, *second) < 0
    assert images.content_ids(ONE, 4) == first[:4], (
        "the content of a position does not depend on how many there are"
    )


# -- what a device is given ---------------------------------------------------------------------------------


def test_urls_files_and_base64(tmp_path):
    data = picture(1)
    text = base64.b64encode(data).decode()
    assert images.image_url(f"data:image/png;base64,{text}", "url") == images.image_base64(text, "b")
    (tmp_path / "p.png").write_bytes(data)
    assert images.image_file(str(tmp_path / "p.png")).data == data
    with pytest.raises(NotFound):
        images.image_file(str(tmp_path / "none.png"))


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("https://example.org/cat.png", Unsupported, "fetches nothing"),
        ("file:///etc/passwd", Unsupported, "fetches nothing"),
        ("data:image/png,abc", InvalidRequest, "not a base64"),
        ("data:image/png;base64", InvalidRequest, "not a base64"),
        ("data:image/png;base64,!!", InvalidRequest, "no valid base64"),
        ("data:image/png;base64,QUJD", InvalidRequest, "not a readable image"),
        ("data:image/png;base64," + "A" * (4 * images.MAX_IMAGE_BYTES // 3 + 8), InvalidRequest, "at most"),
    ],
)
def test_other_urls_are_refused(url, error, words):
    with pytest.raises(error, match=words) as caught:
        images.image_url(url, "messages[0].content[0].image_url.url")
    assert caught.value.field == "messages[0].content[0].image_url.url"
