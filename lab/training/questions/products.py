"""Products of the small multiplication table, worked out in a sentence."""

import random

from ..item import Item, Task
from .replies import is_worked_out
from .words import NAMES, THINGS

STORIES = (
    "{name} has {a} bags with {b} {things} in each bag. How many {things} does {name} have?",
    "Each bag of {name} holds {b} {things}. How many {things} does {name} have in {a} bags?",
    "{name} buys {a} bags. There are {b} {things} in each bag. How many {things} does {name} have?",
)
SHOTS = (
    ("user", "Tom has 3 bags with 5 pens in each bag. How many pens does Tom have?"),
    ("assistant", "There are 3 bags, and each bag has 5 pens. 3 x 5 = 15. So Tom has 15 pens."),
    ("user", "Each bag of Lisa holds 4 hats. How many hats does Lisa have in 2 bags?"),
    ("assistant", "There are 2 bags, and each bag has 4 hats. 2 x 4 = 8. So Lisa has 8 hats."),
)


def draw(rng: random.Random) -> Item:
    """Both factors have one digit."""
    a, b, name, things = rng.randint(2, 9), rng.randint(2, 9), rng.choice(NAMES), rng.choice(THINGS)
    text = rng.choice(STORIES).format(name=name, things=things, a=a, b=b)
    reply = f"There are {a} bags, and each bag has {b} {things}. {a} x {b} = {a * b}. So {name} has {a * b} {things}."
    return Item("products", text, reply, answer=str(a * b), history=SHOTS)


TASK = Task("products", draw, share=1.0, check=is_worked_out)
