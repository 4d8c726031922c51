"""Two-digit sums and differences, with a short answer."""

import random
import re

from ..item import Item, Task
from ..text_grammar import expand, pick

SUMS = (
    "What is {a} + {b}?", "{a} + {b} = ?", "Add {a} and {b}.", "Calculate {a} + {b}.", "How much is {a} plus {b}?",
    "What do I get if I add {b} to {a}?", "I have {a} {things} and get {b} more. How many do I have now?",
    "There are {a} {things} in one box and {b} in another. How many together?", "sum of {a} and {b}",
)  # fmt: skip
DIFFERENCES = (
    "What is {a} - {b}?", "{a} - {b} = ?", "Subtract {b} from {a}.", "Calculate {a} - {b}.", "How much is {a} minus {b}?",
    "What is left if I take {b} from {a}?", "I have {a} {things} and give away {b}. How many are left?",
    "Of {a} {things}, {b} are gone. How many remain?", "difference between {a} and {b}",
)  # fmt: skip
REPLIES = (
    "{a} {op} {b} = {n}", "The answer is {n}.", "{n}", "It is {n}.", "That makes {n}.", "{a} {op} {b} is {n}.", "You get {n}.",
)  # fmt: skip
RULES = {"things": ("apples", "books", "coins", "cards", "stamps", "eggs", "pencils", "marbles")}


def draw(rng: random.Random) -> Item:
    """The key names the operands in order of size, so that no phrasing and no swap leaks a held-out result."""
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    op = rng.choice("+-")
    if op == "-":
        a, b = max(a, b), min(a, b)
    n = a + b if op == "+" else a - b
    bound = {"a": str(a), "b": str(b), "op": op, "n": str(n)}
    text = expand(rng, RULES, pick(rng, SUMS if op == "+" else DIFFERENCES), bound)
    reply = expand(rng, RULES, pick(rng, REPLIES), bound)
    return Item("arithmetic", text, reply, answer=str(n), key=f"{max(a, b)}{op}{min(a, b)}")


def last_number(reply: str) -> str:
    """The result is the last number a reply names, whatever sentence stands around it."""
    numbers = re.findall(r"\d+(?:\.\d+)?", reply)
    return numbers[-1] if numbers else ""


def check(reply: str, answer: str) -> bool:
    return last_number(reply) == answer


TASK = Task("arithmetic", draw, share=10.0, check=check)
