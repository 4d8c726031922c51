"""Unit conversions. Held out by prompt: the same conversion may have been seen in another phrasing."""

import random
import re
from typing import NamedTuple

from ..item import Item, Task
from ..text_grammar import expand, pick


class Conversion(NamedTuple):
    """`largest` bounds the value asked for, from 2 up: products stay in a range a tiny model can learn."""

    big: str
    small: str
    factor: int
    largest: int


CONVERSIONS = (
    Conversion("kilometers", "meters", 1000, 99),
    Conversion("meters", "centimeters", 100, 99),
    Conversion("hours", "minutes", 60, 24),
    Conversion("kilograms", "grams", 1000, 99),
    Conversion("centimeters", "millimeters", 10, 99),
    Conversion("liters", "milliliters", 1000, 99),
    Conversion("minutes", "seconds", 60, 24),
    Conversion("weeks", "days", 7, 24),
    Conversion("days", "hours", 24, 14),
    Conversion("feet", "inches", 12, 24),
    Conversion("tons", "kilograms", 1000, 99),
    Conversion("years", "months", 12, 24),
)
QUESTIONS = (
    "How many {to} are {x} {from}?", "Convert {x} {from} to {to}.", "What is {x} {from} in {to}?", "{x} {from} in {to}",
    "Please tell me how many {to} there are in {x} {from}.", "I have {x} {from}. How much is that in {to}?",
    "Give me {x} {from} as {to}.", "{x} {from} equals how many {to}?",
)  # fmt: skip
REPLIES = (
    "{x} {from} = {y} {to}", "{x} {from} are {y} {to}.", "That is {y} {to}.", "{y} {to}", "It makes {y} {to}.",
    "There are {y} {to} in {x} {from}.",
)  # fmt: skip


def draw(rng: random.Random) -> Item:
    """Small to big is asked only where the result is whole."""
    unit = rng.choice(CONVERSIONS)
    value = rng.randint(2, unit.largest)
    ends = [(str(value), unit.big), (str(value * unit.factor), unit.small)]
    if rng.random() < 0.3:
        ends.reverse()
    (x, source), (y, to) = ends
    bound = {"x": x, "y": y, "from": source, "to": to}
    text = expand(rng, {}, pick(rng, QUESTIONS), bound)
    return Item("units", text, expand(rng, {}, pick(rng, REPLIES), bound), answer=f"{y} {to}")


def check(reply: str, answer: str) -> bool:
    """The result with its unit stands somewhere in the reply, which may name the question's side as well."""
    return re.search(rf"(?<![\d.]){re.escape(answer)}\b", reply) is not None


TASK = Task("units", draw, share=2.0, check=check)
