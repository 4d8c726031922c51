"""Scenes: a picture, what is drawn in each of its patches, and all that can be asked about it."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..item import Split, split_of
from . import bars, meter, shapes
from .canvas import Canvas, Marks
from .questions import COLORS, Question

# Of the pixels' values, for the tower: paper is about zero, so what is drawn stands out.
MEAN, STANDARD_DEVIATION = 0.95, 0.3


@dataclass(frozen=True)
class Scene:
    """`key` says what is drawn, though not how: it decides the split. `marks`: see `Canvas.marks`."""

    kind: str
    key: str
    image: Image.Image
    marks: Marks
    questions: list[Question]


def draw(rng: random.Random, split: Split) -> Scene:
    """The next scene of `rng` that belongs to `split`: what training has drawn is never asked for held out."""
    while True:
        kind = rng.choices(tuple(_MAKERS), _SHARES)[0]
        key, finish = _MAKERS[kind](rng)
        if split_of(f"{kind} {key}") == split:
            canvas, questions = finish()
            return Scene(kind, key, canvas.image, canvas.marks(), questions)


def pixels(image: Image.Image) -> NDArray[np.float32]:
    """[3, side, side], as the image processor of the exported folder makes them."""
    values = np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255
    return ((values - MEAN) / STANDARD_DEVIATION).astype(np.float32)


# What is drawn, and how to draw it and ask about it once it is known to belong to the split.
Draft = tuple[str, Callable[[], tuple[Canvas, list[Question]]]]


def _shapes(rng: random.Random) -> Draft:
    things = shapes.draw_things(rng)
    key = " ".join(f"{thing.cell}:{thing.name}" for thing in things)
    return key, lambda: (shapes.paint(rng, things), shapes.questions(rng, things))


def _bars(rng: random.Random) -> Draft:
    drawn = bars.draw_bars(rng)
    return repr(drawn), lambda: (bars.paint(rng, drawn), bars.questions(rng, drawn))


def _meter(rng: random.Random) -> Draft:
    """Numbers are held out in all colors."""
    number, color = meter.draw_number(rng), rng.choice(COLORS)
    return str(number), lambda: (meter.paint(rng, number, color), meter.questions(rng, number, color))


_MAKERS = {"shapes": _shapes, "bars": _bars, "meter": _meter}
_SHARES = (5, 2, 3)
