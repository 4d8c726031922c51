"""How-to lists: numbered steps that depend on the kind of thing asked for."""

import random

from ..item import Item, Task
from ..text_grammar import Rules, expand, pick

PROMPTS = (
    "How do I {goal}?", "How can I {goal} {limit}?", "Give me a list of steps to {goal}.", "Explain in {n} steps how to {goal}.",
    "I want to {goal} {limit}. What do I have to do?", "Write a short guide: how to {goal}.", "What is the best way to {goal}?",
)  # fmt: skip
SHARED = {
    "limit": (
        "quickly",
        "at home",
        "with little money",
        "for the first time",
        "without help",
        "on a rainy day",
        "with children",
    ),
    "intro": (
        "Here is how to {goal}:",
        "To {goal}, follow these steps:",
        "You can {goal} like this:",
        "Sure! To {goal}:",
        "Try this:",
    ),
    "careful": ("slowly", "with care", "step by step", "gently", "with both hands"),
    "minutes": ("five minutes", "ten minutes", "half an hour", "an hour", "a few minutes"),
    "outro": (
        "That is all.",
        "Good luck!",
        "Enjoy!",
        "Take your time.",
        "It gets easier with practice.",
        "Do not forget to clean up.",
    ),
}
COOK = {
    "goal": ("bake bread", "cook soup", "make pancakes", "prepare a salad", "bake an apple pie", "make tomato sauce", "cook rice",
             "make a fruit cake", "prepare breakfast", "make noodles"),
    "first": ("Wash your hands and {get} {food}.", "{get} {food}, {food} and {tool}.", "Read the recipe and {get} {food}."),
    "get": ("get", "take", "prepare", "measure"),
    "food": ("two cups of flour", "a pinch of salt", "three eggs", "some butter", "fresh vegetables", "a little sugar", "cold water",
             "ripe tomatoes", "a glass of milk"),
    "tool": ("a large bowl", "a sharp knife", "a pan", "a wooden spoon", "a pot"),
    "step": ("Mix {food} with {food} in {tool}.", "Cut everything into {size} pieces.", "Heat {tool} for {minutes}.",
             "Add {food} and stir {careful}.", "Let it rest for {minutes}.", "Taste it and add {food} if needed.",
             "Cover {tool} and wait {minutes}."),
    "size": ("small", "thin", "equal", "large"),
    "last": ("Serve it {warm}.", "Let it cool down and serve it.", "Put it on a plate and enjoy.", "Share it with your friends."),
    "warm": ("warm", "with fresh herbs", "on a plate", "at once"),
}  # fmt: skip
REPAIR = {
    "goal": ("fix a bicycle", "repair a chair", "paint a wall", "build a bird house", "change a light bulb", "clean a window",
             "hang a picture", "sharpen a knife", "fix a door", "build a shelf"),
    "first": ("{get} {tool} and {tool}.", "Look at the damage and {get} {tool}.", "Clear the place and {get} {tool}."),
    "get": ("get", "find", "borrow", "buy"),
    "tool": ("a hammer", "a screwdriver", "some nails", "sandpaper", "a clean cloth", "a ladder", "wood glue", "a pencil and a ruler",
             "a saw"),
    "step": ("Mark the right place with {tool}.", "Remove the {part} {careful}.", "Clean the {part} with {tool}.",
             "Fix the {part} with {tool}.", "Let the {part} dry for {minutes}.", "Check that the {part} sits {tight}.",
             "Measure the {part} twice."),
    "part": ("old parts", "screws", "surface", "edges", "frame", "handle", "boards"),
    "tight": ("tight", "straight", "well", "in the middle"),
    "last": ("Test it {careful}.", "Put the tools away.", "Check everything again.", "Step back and look at your work."),
}  # fmt: skip
LEARN = {
    "goal": ("learn a language", "learn to swim", "write a poem", "learn the guitar", "get up early", "save money", "make new friends",
             "prepare for an exam", "learn chess", "start a garden"),
    "first": ("Ask yourself why you want it.", "Set a {small} goal for the first week.", "Find {help}."),
    "small": ("small", "clear", "simple", "realistic"),
    "help": ("a good teacher", "a friend who joins you", "a book about it", "a quiet place", "a group nearby"),
    "step": ("Practice for {minutes} every {day}.", "Write down {what}.", "Look for {help}.", "Start with something {small}.",
             "Take a break after {minutes}.", "Talk about {what} with a friend.", "Do not worry about {what}."),
    "day": ("day", "morning", "evening", "weekend"),
    "what": ("your progress", "your mistakes", "what went well", "new ideas", "the next step", "your plan"),
    "last": ("Celebrate what you reached.", "Do it again tomorrow.", "Teach it to someone else.", "Be patient with yourself."),
}  # fmt: skip
KINDS: tuple[Rules, ...] = (COOK, REPAIR, LEARN)
NUMBERS = {3: "three", 4: "four", 5: "five", 6: "six"}


def draw(rng: random.Random) -> Item:
    """The prompt may fix the number of steps, and always the kind: a bread needs no screwdriver."""
    kind = rng.choice(KINDS)
    count = rng.choice(tuple(NUMBERS))
    rules = {**SHARED, **kind}
    bound = {"goal": rng.choice(kind["goal"]), "n": NUMBERS[count]}
    text = expand(rng, rules, pick(rng, PROMPTS), bound)
    return Item("howto", text, _reply(rng, rules, bound, count))


def _reply(rng: random.Random, rules: Rules, bound: dict[str, str], count: int) -> str:
    slots = ("first", *["step"] * (count - 2), "last")
    steps = [expand(rng, rules, pick(rng, rules[slot]), bound) for slot in slots]
    lines = [f"{number}. {step[0].upper()}{step[1:]}" for number, step in enumerate(steps, start=1)]
    intro = expand(rng, rules, pick(rng, rules["intro"]), bound)
    outro = [expand(rng, rules, pick(rng, rules["outro"]), bound)] if rng.random() < 0.5 else []
    return "\n".join([intro, *lines, *outro])


TASK = Task("howto", draw, share=1.0)
