"""One fact out of a short note about several people, told in a sentence."""

import json
import random

from ..item import Item, Task
from .replies import said
from .words import ANIMALS, CITIES, DAYS, JOBS, NAMES

SHOTS = (
    (
        "user",
        "Note: Tom is a writer and lives in Tokyo. Lisa is a dancer and lives in Cairo. He has a mouse, she has a "
        "parrot. They meet on Monday.\nWhere does Lisa live, and what is her job? Answer in one sentence.",
    ),
    ("assistant", "The note says that Lisa is a dancer and that Lisa lives in Cairo."),
)


def draw(rng: random.Random) -> Item:
    """Two people with a job, a city and an animal each; the answer holds two facts of one of them."""
    people = rng.sample(NAMES, 2)
    jobs, cities, animals = rng.sample(JOBS, 2), rng.sample(CITIES, 2), rng.sample(ANIMALS, 2)
    facts = [
        f"{people[place]} is a {jobs[place]} and lives in {cities[place]}, with a {animals[place]}."
        for place in range(2)
    ]
    asked = rng.randrange(2)
    name = people[asked]
    text = (
        f"Note: {' '.join(facts)} They meet on {rng.choice(DAYS)}.\n"
        f"Where does {name} live, and what is the job of {name}? Answer in one sentence."
    )
    reply = f"The note says that {name} is a {jobs[asked]} and that {name} lives in {cities[asked]}."
    return Item("notes", text, reply, answer=json.dumps([jobs[asked], cities[asked]]), history=SHOTS)


def check(reply: str, answer: str) -> bool:
    """The reply names this job and this city, and no other one."""
    job, city = json.loads(answer)
    return said(reply, JOBS) == [job] and said(reply, CITIES) == [city]


TASK = Task("notes", draw, share=1.0, check=check)
