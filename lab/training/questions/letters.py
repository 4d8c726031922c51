"""A short invitation written from a list of facts."""

import json
import random

from ..item import Item, Task
from .replies import said
from .words import CITIES, DAYS, EVENTS, NAMES

HOURS = tuple(map(str, range(100)))
SHOTS = (
    ("user", "Write the invitation. To: Tom. From: Lisa. Event: picnic. City: Cairo. Day: Monday. Hour: 4."),
    (
        "assistant",
        "Dear Tom, I would like to invite you to my picnic in Cairo. It is on Monday at 4 o'clock. Yours, Lisa",
    ),
    ("user", "Write the invitation. Day: Friday. Hour: 9. City: Tokyo. Event: parade. From: Mike. To: Kate."),
    (
        "assistant",
        "Dear Kate, I would like to invite you to my parade in Tokyo. It is on Friday at 9 o'clock. Yours, Mike",
    ),
)


def draw(rng: random.Random) -> Item:
    """The facts come in any order."""
    to, sender = rng.sample(NAMES, 2)
    event, city, day = rng.choice(EVENTS), rng.choice(CITIES), rng.choice(DAYS)
    hour = str(rng.randint(1, 11))
    facts = [
        f"To: {to}.",
        f"From: {sender}.",
        f"Event: {event}.",
        f"City: {city}.",
        f"Day: {day}.",
        f"Hour: {hour}.",
    ]
    rng.shuffle(facts)
    reply = (
        f"Dear {to}, I would like to invite you to my {event} in {city}. It is on {day} at {hour} o'clock. "
        f"Yours, {sender}"
    )
    answer = json.dumps([[to, sender], [event], [city], [day], [hour]])
    return Item("letters", f"Write the invitation. {' '.join(facts)}", reply, answer=answer, history=SHOTS)


def check(reply: str, answer: str) -> bool:
    """Whether the reply names all facts and no others, the receiver before the sender."""
    return [said(reply, words) for words in (NAMES, EVENTS, CITIES, DAYS, HOURS)] == json.loads(answer)


TASK = Task("letters", draw, share=1.0, check=check)
