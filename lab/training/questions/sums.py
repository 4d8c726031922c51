"""Sums of a small and a smaller number, worked out in a sentence."""

import random

from ..item import Item, Task
from .replies import is_worked_out
from .words import NAMES, THINGS

STORIES = (
    "{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?",
    "{name} has {a} {things} and finds {b} more. How many {things} does {name} have now?",
    "{name} has {a} {things} and gets {b} more from {other}. How many {things} does {name} have now?",
)
SHOTS = (
    ("user", "Tom has 14 pens and buys 5 more. How many pens does Tom have now?"),
    ("assistant", "Tom has 14 pens and gets 5 more. 14 + 5 = 19. So now Tom has 19 pens."),
    ("user", "Lisa has 23 hats and finds 8 more. How many hats does Lisa have now?"),
    ("assistant", "Lisa has 23 hats and gets 8 more. 23 + 8 = 31. So now Lisa has 31 hats."),
)


def draw(rng: random.Random) -> Item:
    """A number of two digits and one of one digit."""
    a, b = rng.randint(11, 59), rng.randint(2, 9)
    name, other = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)
    text = rng.choice(STORIES).format(name=name, other=other, things=things, a=a, b=b)
    reply = (
        f"{name} has {a} {things} and gets {b} more. {a} + {b} = {a + b}. So now {name} has {a + b} {things}."
    )
    return Item("sums", text, reply, answer=str(a + b), history=SHOTS)


TASK = Task("sums", draw, share=1.0, check=is_worked_out)
