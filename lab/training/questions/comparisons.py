"""Which of two people has more, with the numbers of both."""

import random

from ..item import Item, Task
from .replies import said
from .words import NAMES, THINGS

QUESTIONS = (
    "{one} has {a} {things} and {other} has {b} {things}. Who has more?",
    "{one} sold {a} {things}, {other} sold {b} {things}. Who sold more?",
    "There are {a} {things} in the bag of {one} and {b} {things} in the bag of {other}. Whose bag has more?",
)
SHOTS = (
    ("user", "Tom has 48 pens and Lisa has 52 pens. Who has more?"),
    ("assistant", "Tom has 48 and Lisa has 52. 52 is more than 48, so the answer is: Lisa."),
    ("user", "Kate sold 310 hats, Mike sold 130 hats. Who sold more?"),
    ("assistant", "Kate has 310 and Mike has 130. 310 is more than 130, so the answer is: Kate."),
)


def draw(rng: random.Random) -> Item:
    """Two different numbers with the same number of digits."""
    low = rng.choice((10, 100))
    a, b = rng.sample(range(low, 10 * low), 2)
    one, other = rng.sample(NAMES, 2)
    text = rng.choice(QUESTIONS).format(one=one, other=other, a=a, b=b, things=rng.choice(THINGS))
    more = one if a > b else other
    reply = (
        f"{one} has {a} and {other} has {b}. {max(a, b)} is more than {min(a, b)}, so the answer is: {more}."
    )
    return Item("comparisons", text, reply, answer=more, history=SHOTS)


def check(reply: str, answer: str) -> bool:
    """Whether the last clause names this person, and no other person."""
    return said(reply.strip().rstrip(".").rpartition(",")[2].rpartition(".")[2], NAMES) == [answer]


TASK = Task("comparisons", draw, share=1.0, check=check)
