"""Pictures of strangers: what a device refuses unread, and what the server refuses of a file that it decodes."""

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


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, body: bytes = b"", depth=8, colour=2, more: bytes = b"") -> bytes:
    """A PNG file that says to be so large, whatever follows."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + more + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


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


def test_transparency_is_white():
    clear = BytesIO()
    Pillow.new("RGBA", (4, 4), (255, 0, 0, 0)).save(clear, "PNG")
    assert (pixels_of(clear.getvalue()) == 255).all()


# -- depths and kinds -----------------------------------------------------------------------------------------

GREY, COLOUR, PALETTE, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 3, 4, 6
SAMPLES = {GREY: 1, COLOUR: 3, PALETTE: 1, GREY_ALPHA: 2, COLOUR_ALPHA: 4}


def drawn(colour: int, depth: int, clear: int | None = None, steps: int = 8) -> bytes:
    """A gradient of 8 x 8 pixels of so many bits, in 2^`steps` steps; the value `clear`, of 8 bits, is transparent."""
    top, count = (1 << depth) - 1, SAMPLES[colour]
    stored = np.arange(64 * count).reshape(8, 8 * count, 1) * 7 % (1 << steps) * top // ((1 << steps) - 1)
    bits = (stored >> np.arange(depth - 1, -1, -1) & 1).astype(np.uint8)
    body = b"".join(b"\0" + row.tobytes() for row in np.packbits(bits.reshape(8, -1), axis=1))
    greys = [value * 255 // top for value in range(top + 1)] if colour == PALETTE else []
    more = chunk(b"PLTE", bytes(np.repeat(greys, 3).tolist())) if greys else b""
    if clear is not None:
        scaled = clear * top // 255
        more += chunk(b"tRNS", bytes([255] * scaled + [0]) if greys else struct.pack(">H", scaled) * count)
    return png(8, 8, body, depth, colour, more)


@pytest.mark.parametrize("clear", [None, 7 * 5])
@pytest.mark.parametrize("colour", [GREY, COLOUR, GREY_ALPHA, COLOUR_ALPHA])
def test_a_picture_of_16_bits_is_seen_as_that_of_8(colour, clear):
    clear = clear if colour in (GREY, COLOUR) else None
    assert np.array_equal(pixels_of(drawn(colour, 16, clear)), pixels_of(drawn(colour, 8, clear)))


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("clear", [None, 0, 255])
def test_a_grey_picture_of_few_bits_is_seen_as_that_of_a_palette(depth, clear):
    grey, palette = (pixels_of(drawn(colour, depth, clear, depth)) for colour in (GREY, PALETTE))
    assert np.array_equal(grey, palette)


TURNED = {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0", "quality": 100}
SEVERAL = {"save_all": True, "append_images": [Pillow.new("RGB", (40, 30))]}
KINDS = [
    *(("JPEG", "CMYK", {"quality": 99}), ("WEBP", "RGBA", {"lossless": True}), ("MPO", "RGB", SEVERAL)),
    ("WEBP", "RGB", {"lossless": True, "exif": b"rubbish"}),
    *(("PNG", "RGB", {"save_all": True}), *((kind, "RGB", TURNED) for kind in ("JPEG", "PNG", "WEBP"))),
]


@pytest.mark.parametrize("kind, mode, options", KINDS)
def test_every_kind_of_file_shows_its_colours_upright(kind, mode, options):
    file = BytesIO()
    Pillow.new("RGB", (40, 30), (200, 60, 30)).convert(mode).save(file, kind, **options)
    pixels = pixels_of(file.getvalue())
    assert pixels.shape == ((40, 30, 3) if options is TURNED else (30, 40, 3))
    assert abs(pixels.astype(int) - (200, 60, 30)).max() <= 3


BIG, SIX = zlib.compress(b" " * (2 << 20)), chunk(b"eXIf", TURNED["exif"][6:])
WORDS = {
    "a large workflow": chunk(b"zTXt", b"workflow\0\0" + BIG),
    "large XMP": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + BIG),
    "many texts": b"".join([chunk(b"zTXt", b"a\0\0" + zlib.compress(b" " * 1_000_000)) for _ in range(68)]),
    "a damaged text": chunk(b"tEXt", b"a\0b")[:-4] + b"\0\0\0\0",
    "a large profile": chunk(b"iCCP", b"a\0\0" + BIG),
    "broken EXIF": chunk(b"eXIf", b"rubbish"),
    "damaged EXIF": SIX[:-4] + b"\0\0\0\0",
    "turned": SIX + chunk(b"zTXt", b"a\0\0" + BIG),
    "turned by XMP": chunk(b"iTXt", b'XML:com.adobe.xmp\0\0\0\0\0<x tiff:Orientation="6"/>'),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_in_a_file_do_not_hide_its_picture(name):
    pixels = pixels_of(png(2, 1, bytes(7), more=WORDS[name]))
    assert pixels.shape == ((2, 1, 3) if name.startswith("turned") else (1, 2, 3))


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
