"""A question about a picture, its reply, and how any reply is checked."""

import re
from dataclasses import dataclass

COLORS = ("red", "green", "blue", "yellow", "orange", "purple")
SHAPES = ("circle", "square", "triangle", "cross")
PLACES = (
    "top left", "top right", "bottom left", "bottom right", "top", "bottom", "left", "right", "middle",
)  # fmt: skip

_COLOR = "|".join(COLORS)
_SHAPE = "|".join(SHAPES)
# What a reply to a question of this kind states; all other words in it are free.
_FACTS = {
    "color": _COLOR,
    "shape": _SHAPE,
    "count": r"\d+|\bno\b",
    "place": "|".join(PLACES),
    "content": f"(?:{_COLOR}) (?:{_SHAPE})|nothing",
    "relation": r"left|right|above|below",
    "presence": r"\byes\b|\bno\b",
    "bar count": r"\d+",
    "bar color": _COLOR,
    "reading": r"\d+",
    "digit": r"\d+",
    "description": rf"(?:{_COLOR}) (?:{_SHAPE}|bar)|\d+",
}
KINDS = tuple(_FACTS)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a picture, and one right reply. `facts` are what any right reply states, in any order."""

    kind: str
    text: str
    reply: str
    facts: tuple[str, ...]


def is_right(question: Question, reply: str) -> bool:
    """Whether `reply` states the facts, each as often as there are such things, and no other."""
    stated = re.findall(_FACTS[question.kind], reply.lower())
    return sorted(stated) == sorted(question.facts)
