"""A sentence turned into JSON with fixed keys."""

import json
import random

from ..item import Item, Task
from .words import CITIES, COLOURS, JOBS, NAMES, THINGS

SENTENCES = (
    "{name} from {city} is a {job} and ordered {count} {colour} {things}.",
    "{count} {colour} {things} were ordered by {name}, a {job} from {city}.",
    "The {job} {name} lives in {city} and wants {count} {things} in {colour}.",
)
SHOTS = (
    ("user", "Write as JSON: Tom from Cairo is a dancer and ordered 7 grey hats."),
    (
        "assistant",
        '{"name": "Tom", "city": "Cairo", "job": "dancer", "count": 7, "colour": "grey", "item": "hats"}',
    ),
    ("user", "Write as JSON: 24 silver pens were ordered by Lisa, a writer from Tokyo."),
    (
        "assistant",
        '{"name": "Lisa", "city": "Tokyo", "job": "writer", "count": 24, "colour": "silver", "item": "pens"}',
    ),
)


def draw(rng: random.Random) -> Item:
    """Six fields, whose order in the sentence differs from that of the keys."""
    record: dict[str, str | int] = {
        "name": rng.choice(NAMES),
        "city": rng.choice(CITIES),
        "job": rng.choice(JOBS),
        "count": rng.randint(2, 60),
        "colour": rng.choice(COLOURS),
        "item": rng.choice(THINGS),
    }
    sentence = rng.choice(SENTENCES).format(**record, things=record["item"])
    reply = json.dumps(record)
    return Item("records", f"Write as JSON: {sentence}", reply, answer=reply, history=SHOTS)


def check(reply: str, answer: str) -> bool:
    """Equal as JSON: spaces and the order of keys do not matter."""
    try:
        return bool(json.loads(reply) == json.loads(answer))
    except ValueError:
        return False


TASK = Task("records", draw, share=1.0, check=check)
