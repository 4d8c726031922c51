"""A small picture that knows what is drawn where: colors to look at, and a label under every pixel."""

import math
import random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from .questions import COLORS, SHAPES

SIDE = 64
PATCH = 8
PATCHES = (SIDE // PATCH) ** 2
# What a figure can be; 0 is the background.
FIGURES = (*SHAPES, "bar", *"0123456789")
PALETTE = {
    "red": (215, 35, 40),
    "green": (30, 160, 60),
    "blue": (40, 75, 220),
    "yellow": (240, 215, 30),
    "orange": (250, 135, 20),
    "purple": (150, 50, 180),
}
# Where a grid of three by three has its middles: on the corners of patches, so a tower sees like things alike.
MIDDLES = (8, 32, 56)
SHADE = 12  # how far a color may stray from its entry in PALETTE
MIN_PIXELS = 6  # a patch with fewer of its figures' pixels counts as empty

RGB = tuple[int, int, int]
Marks = NDArray[np.uint8]


class Canvas:
    """A picture in the making. Figures must not overlap."""

    def __init__(self, rng: random.Random, background: RGB) -> None:
        self._rng = rng
        self.image = Image.new("RGB", (SIDE, SIDE), background)
        self.labels = Image.new("L", (SIDE, SIDE), 0)
        self._pen = ImageDraw.Draw(self.image)
        self._marker = ImageDraw.Draw(self.labels)
        self._middles: list[tuple[int, int]] = []

    def shape(self, shape: str, color: str, middle: tuple[int, int], radius: int) -> None:
        outlines = _outlines(shape, middle, radius)
        for pen, ink in self._inks(shape, color, middle):
            for outline in outlines:
                pen.polygon(outline, fill=ink)

    def bar(self, color: str, box: tuple[int, int, int, int]) -> None:
        """`box`: left, top, right, bottom, all within the bar."""
        left, top, right, _ = box
        for pen, ink in self._inks("bar", color, ((left + right) // 2, top)):
            pen.rectangle(box, fill=ink)

    def rule(self, level: int) -> None:
        """A gray line across the picture, which counts as background."""
        self._pen.line((0, level, SIDE, level), fill=(120, 120, 120))

    def digit(self, digit: str, color: str, middle: tuple[int, int], font: ImageFont.FreeTypeFont) -> None:
        """Its edges are soft: a pixel is labeled where it is more ink than paper."""
        (_, ink), (_, label) = self._inks(digit, color, middle)
        mask = Image.new("L", self.image.size)
        ImageDraw.Draw(mask).text(middle, digit, fill=255, font=font, anchor="mm", stroke_width=1)
        self.image.paste(ink, mask=mask)
        self.labels.paste(label, mask=mask.point(lambda share: 255 * (share > 127)))

    def _inks(
        self, figure: str, color: str, middle: tuple[int, int]
    ) -> tuple[tuple[ImageDraw.ImageDraw, RGB | int], ...]:
        """What to draw with: first the picture, then its labels."""
        self._middles.append(middle)
        label = 1 + COLORS.index(color) * len(FIGURES) + FIGURES.index(figure)
        return (self._pen, _shaded(self._rng, PALETTE[color])), (self._marker, label)

    def marks(self) -> Marks:
        """Of each patch: its color, its figure, whether the middle of a figure lies in it (0 = none), its row and its
        column, from 1 on.
        """
        tiles = np.asarray(self.labels).reshape(SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
        labels = np.array([_commonest(tile) for tile in tiles.swapaxes(1, 2).reshape(PATCHES, -1)])
        middles = np.zeros(PATCHES, dtype=int)
        for x, y in self._middles:
            middles[y // PATCH * (SIDE // PATCH) + x // PATCH] = 1
        color, figure = np.divmod(labels - 1, len(FIGURES))
        drawn = labels > 0
        row, column = np.divmod(np.arange(PATCHES), SIDE // PATCH)
        marks = [(color + 1) * drawn, (figure + 1) * drawn, middles, row + 1, column + 1]
        return np.stack(marks, axis=1).astype(np.uint8)


def _commonest(labels: Marks) -> int:
    counts = np.bincount(labels)
    counts[0] = 0
    return int(counts.argmax()) if counts.sum() >= MIN_PIXELS else 0


def _shaded(rng: random.Random, color: RGB) -> RGB:
    red, green, blue = (min(255, max(0, part + rng.randint(-SHADE, SHADE))) for part in color)
    return red, green, blue


def _outlines(shape: str, middle: tuple[int, int], radius: int) -> list[list[tuple[float, float]]]:
    """Polygons that make up the shape; a cross takes two."""
    x, y = middle
    if shape == "circle":
        angles = [math.tau * corner / 24 for corner in range(24)]
        return [[(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles]]
    if shape == "square":
        side = radius - 1
        return [[(x - side, y - side), (x + side, y - side), (x + side, y + side), (x - side, y + side)]]
    if shape == "triangle":
        return [[(x, y - radius), (x + radius, y + radius - 1), (x - radius, y + radius - 1)]]
    arm = radius // 3
    return [_beam(x, y, radius, arm), _beam(x, y, arm, radius)]


def _beam(x: int, y: int, wide: int, high: int) -> list[tuple[float, float]]:
    return [(x - wide, y - high), (x + wide, y - high), (x + wide, y + high), (x - wide, y + high)]
