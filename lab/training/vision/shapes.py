"""Colored shapes in the cells of a grid of three by three."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ..text_grammar import pick
from .canvas import MIDDLES, RGB, Canvas
from .questions import COLORS, SHAPES, Question

GRID = len(MIDDLES)
COUNTS = (1, 2, 3, 4)
COUNT_WEIGHTS = (2, 4, 3, 1)
BACKGROUNDS: tuple[RGB, ...] = ((255, 255, 255), (235, 235, 235))
PLACE_AT = (
    "top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right",
)  # fmt: skip
MAX_PLACED = 3  # shapes that a description places; with more it would grow too long


@dataclass(frozen=True, slots=True)
class Thing:
    shape: str
    color: str
    cell: int

    @property
    def name(self) -> str:
        return f"{self.color} {self.shape}"

    @property
    def place(self) -> str:
        return PLACE_AT[self.cell]


def draw_things(rng: random.Random) -> list[Thing]:
    """What stands in a scene, cell by cell."""
    count = rng.choices(COUNTS, COUNT_WEIGHTS)[0]
    cells = sorted(rng.sample(range(GRID * GRID), count))
    colors = rng.sample(COLORS, rng.randint(min(2, count), len(COLORS)))
    return [Thing(rng.choice(SHAPES), rng.choice(colors), cell) for cell in cells]


def paint(rng: random.Random, things: list[Thing]) -> Canvas:
    canvas = Canvas(rng, rng.choice(BACKGROUNDS))
    for thing in things:
        row, column = divmod(thing.cell, GRID)
        x, y = (MIDDLES[place] + rng.randint(-1, 1) for place in (column, row))
        canvas.shape(thing.shape, thing.color, (x, y), rng.randint(7, 8))
    return canvas


def questions(rng: random.Random, things: list[Thing]) -> list[Question]:
    """All that can be asked about a scene, each in one wording."""
    asked = [*_colors(rng, things), *_shapes(rng, things), *_counts(rng, things), *_places(rng, things)]
    asked += [_content(rng, things), _presence(rng, things)]
    if len(single := _single(things)) > 1:
        asked.append(_relation(rng, *rng.sample(single, 2)))
    return [*asked, _description(rng, things)]


def _colors(rng: random.Random, things: list[Thing]) -> Iterator[Question]:
    for shape in SHAPES:
        found = [thing for thing in things if thing.shape == shape]
        if len(found) == 1:
            text = pick(rng, ("What color is the {s}?", "Which color does the {s} have?")).format(s=shape)
            reply = pick(rng, ("The {s} is {c}.", "It is {c}.")).format(s=shape, c=found[0].color)
            yield Question("color", text, reply, (found[0].color,))


def _shapes(rng: random.Random, things: list[Thing]) -> Iterator[Question]:
    for color in COLORS:
        found = [thing for thing in things if thing.color == color]
        if len(found) == 1:
            text = pick(rng, ("What shape is the {c} one?", "What is {c}?")).format(c=color)
            reply = pick(rng, ("The {c} one is a {s}.", "It is a {s}.")).format(c=color, s=found[0].shape)
            yield Question("shape", text, reply, (found[0].shape,))


def _counts(rng: random.Random, things: list[Thing]) -> Iterator[Question]:
    """Mostly of what is there."""
    shape, color = rng.choice(SHAPES), rng.choice(COLORS)
    if rng.random() < 0.8:
        shape, color = rng.choice(things).shape, rng.choice(things).color
    yield _count(rng, len(things), "shape")
    yield _count(rng, sum(thing.shape == shape for thing in things), shape)
    yield _count(rng, sum(thing.color == color for thing in things), f"{color} shape")


def _count(rng: random.Random, count: int, what: str) -> Question:
    text = pick(rng, ("How many {w}s are there?", "How many {w}s do you see?", "Count the {w}s."))
    number = str(count) if count else "no"
    verb, plural = ("is", "") if count == 1 else ("are", "s")
    reply = f"There {verb} {number} {what}{plural}."
    return Question("count", text.format(w=what), reply, (number,))


def _single(things: list[Thing]) -> list[Thing]:
    """Those that their names tell apart."""
    names = [thing.name for thing in things]
    return [thing for thing in things if names.count(thing.name) == 1]


def _places(rng: random.Random, things: list[Thing]) -> Iterator[Question]:
    for thing in _single(things):
        text = pick(rng, ("Where is the {n}?", "Where do you see the {n}?")).format(n=thing.name)
        reply = pick(rng, ("It is {p}.", "The {n} is {p}.")).format(n=thing.name, p=_at(thing.place))
        yield Question("place", text, reply, (thing.place,))


def _at(place: str) -> str:
    if place == "middle":
        return "in the middle"
    return f"on the {place}" if place in ("left", "right") else f"at the {place}"


def _content(rng: random.Random, things: list[Thing]) -> Question:
    """Three times in four about a cell that is not empty."""
    named = {thing.cell: thing.name for thing in things}
    cell = rng.choice(things).cell if rng.random() < 0.75 else rng.randrange(GRID * GRID)
    fact = named.get(cell, "nothing")
    reply = f"{_article(fact)} {fact}." if cell in named else "There is nothing."
    return Question("content", f"What is {_at(PLACE_AT[cell])}?", reply[0].upper() + reply[1:], (fact,))


def _article(name: str) -> str:
    return "an" if name[0] in "aeiou" else "a"


def _presence(rng: random.Random, things: list[Thing]) -> Question:
    names = {thing.name for thing in things}
    name = rng.choice(sorted(names)) if rng.random() < 0.5 else f"{rng.choice(COLORS)} {rng.choice(SHAPES)}"
    text = pick(rng, ("Is there {a} {n}?", "Do you see {a} {n}?")).format(a=_article(name), n=name)
    if name in names:
        return Question("presence", text, "Yes, there is one.", ("yes",))
    return Question("presence", text, "No, I do not see one.", ("no",))


def _relation(rng: random.Random, one: Thing, other: Thing) -> Question:
    """Left or right where the columns differ, else above or below."""
    (row, column), (other_row, other_column) = divmod(one.cell, GRID), divmod(other.cell, GRID)
    if column != other_column:
        word = "left" if column < other_column else "right"
        choice, phrase = "left or right of", f"to the {word} of"
    else:
        word = phrase = "above" if row < other_row else "below"
        choice = "above or below"
    text = f"Is the {one.name} {choice} the {other.name}?"
    return Question("relation", text, f"It is {phrase} the {other.name}.", (word,))


def _description(rng: random.Random, things: list[Thing]) -> Question:
    """Open: the order, the places and the wording are free."""
    placed = len(things) <= MAX_PLACED and rng.random() < 0.6
    order = rng.sample(things, len(things))
    named = [f"{_article(t.name)} {t.name}" + (f" {_at(t.place)}" if placed else "") for t in order]
    listed = ", ".join(named[:-1]) + " and " + named[-1] if len(named) > 1 else named[0]
    opening = pick(
        rng, ("I see {l}.", "There is {l}.", "The picture shows {l}.", "It shows {l}.", "Here is {l}.")
    )
    text = pick(rng, ("Describe the picture.", "What do you see?", "What is in the picture?"))
    return Question("description", text, opening.format(l=listed), tuple(thing.name for thing in things))
