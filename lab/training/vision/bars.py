"""Bar charts: up to five bars, each in its own color and height."""

import random

from ..text_grammar import pick
from .canvas import RGB, SIDE, Canvas
from .questions import COLORS, Question

Bars = list[tuple[str, int]]  # color and height, from left to right

MIN_BARS, MAX_BARS = 2, 5
HEIGHTS = tuple(range(10, 56, 5))
PITCH = 12
FLOOR = 60
BACKGROUNDS: tuple[RGB, ...] = ((255, 255, 255), (235, 235, 235))
ORDINALS = ("first", "second", "third", "fourth", "fifth")


def draw_bars(rng: random.Random) -> Bars:
    count = rng.randint(MIN_BARS, MAX_BARS)
    return list(zip(rng.sample(COLORS, count), rng.sample(HEIGHTS, count), strict=True))


def paint(rng: random.Random, bars: Bars) -> Canvas:
    """From the left, on one line that is drawn under all of them."""
    canvas = Canvas(rng, rng.choice(BACKGROUNDS))
    canvas.rule(FLOOR + 1)
    start = rng.randint(1, 3)
    for number, (color, height) in enumerate(bars):
        left = start + PITCH * number
        canvas.bar(color, (left, FLOOR - height, left + PITCH - 4, FLOOR))
    assert start + PITCH * MAX_BARS - 4 < SIDE
    return canvas


def questions(rng: random.Random, bars: Bars) -> list[Question]:
    asked = [
        _count(rng, bars),
        *_extremes(rng, bars),
        _nth(rng, bars),
        _comparison(rng, *rng.sample(bars, 2)),
    ]
    return [*asked, _description(rng, bars)]


def _count(rng: random.Random, bars: Bars) -> Question:
    text = pick(rng, ("How many bars are there?", "How many bars does the chart have?", "Count the bars."))
    return Question("bar count", text, f"There are {len(bars)} bars.", (str(len(bars)),))


def _extremes(rng: random.Random, bars: Bars) -> list[Question]:
    found = []
    for word, (color, _) in (("highest", max(bars, key=_height)), ("lowest", min(bars, key=_height))):
        text = pick(rng, ("Which bar is the {w}?", "What color is the {w} bar?")).format(w=word)
        reply = pick(rng, ("The {c} bar is the {w}.", "The {w} bar is {c}.")).format(w=word, c=color)
        found.append(Question("bar color", text, reply, (color,)))
    return found


def _height(bar: tuple[str, int]) -> int:
    return bar[1]


def _nth(rng: random.Random, bars: Bars) -> Question:
    number = rng.randrange(len(bars))
    word, color = ORDINALS[number], bars[number][0]
    text = f"What color is the {word} bar from the left?"
    return Question("bar color", text, f"The {word} bar is {color}.", (color,))


def _comparison(rng: random.Random, one: tuple[str, int], other: tuple[str, int]) -> Question:
    (color, height), (other_color, other_height) = one, other
    higher = height > other_height
    word = "higher" if higher else "lower"
    text = f"Is the {color} bar higher than the {other_color} one?"
    fact = "yes" if higher else "no"
    return Question(
        "presence", text, f"{fact.capitalize()}, it is {word} than the {other_color} one.", (fact,)
    )


def _description(rng: random.Random, bars: Bars) -> Question:
    """Open: from either side, in several wordings."""
    backwards = rng.random() < 0.3
    named = [f"a {color} bar".replace("a orange", "an orange") for color, _ in bars]
    if backwards:
        named.reverse()
    listed = ", ".join(named[:-1]) + " and " + named[-1]
    opening = pick(rng, ("I see a chart:", "A bar chart with", "The chart shows", "There is a chart with"))
    text = pick(rng, ("Describe the picture.", "What do you see?", "What is in the picture?"))
    facts = tuple(f"{color} bar" for color, _ in bars)
    return Question("description", text, f"{opening} {listed}.", facts)
