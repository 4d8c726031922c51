"""The display of a meter: a number of two or three large digits."""

import random
from functools import cache

from PIL import ImageFont

from ..text_grammar import pick
from .canvas import MIDDLES, RGB, Canvas
from .questions import Question

LEAST, MOST = 10, 999
FONT_SIZE = 27
BACKGROUNDS: tuple[RGB, ...] = ((255, 255, 255), (235, 235, 235))
NTH = {2: ("first", "last"), 3: ("first", "second", "last")}


@cache
def _font() -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(FONT_SIZE)
    assert isinstance(font, ImageFont.FreeTypeFont), "this Pillow was built without FreeType"
    return font


def draw_number(rng: random.Random) -> int:
    """One in five has two digits."""
    return rng.randint(LEAST, 99) if rng.random() < 0.2 else rng.randint(100, MOST)


def paint(rng: random.Random, number: int, color: str) -> Canvas:
    """One digit a column; a number of two digits leaves the first column empty."""
    canvas = Canvas(rng, rng.choice(BACKGROUNDS))
    level = MIDDLES[1] + rng.randint(-1, 1)
    for digit, place in zip(reversed(str(number)), reversed(MIDDLES)):
        canvas.digit(digit, color, (place + rng.randint(-1, 1), level), _font())
    return canvas


def questions(rng: random.Random, number: int, color: str) -> list[Question]:
    return [_reading(rng, number), _digit(rng, number), _color(color), _description(rng, number, color)]


def _reading(rng: random.Random, number: int) -> Question:
    text = pick(rng, ("What does the meter show?", "Read the meter.", "What number is this?"))
    reply = pick(rng, ("The meter shows {v}.", "It reads {v}.", "It shows {v}.")).format(v=number)
    return Question("reading", text, reply, (str(number),))


def _digit(rng: random.Random, number: int) -> Question:
    digits = str(number)
    places = NTH[len(digits)]
    place = rng.randrange(len(places))
    text = f"What is the {places[place]} digit?"
    return Question("digit", text, f"The {places[place]} digit is {digits[place]}.", (digits[place],))


def _color(color: str) -> Question:
    return Question("color", "What color are the digits?", f"The digits are {color}.", (color,))


def _description(rng: random.Random, number: int, color: str) -> Question:
    """Open in its wording."""
    text = pick(rng, ("Describe the picture.", "What do you see?", "What is in the picture?"))
    what = pick(rng, ("the display of a meter", "a meter", "the number of a meter", "a display"))
    opening = pick(rng, ("I see {w}", "This is {w}", "The picture shows {w}")).format(w=what)
    ending = pick(rng, ("; it reads {v}.", " with {c} digits: {v}.", ". It says {v}.")).format(
        v=number, c=color
    )
    return Question("description", text, opening + ending, (str(number),))
