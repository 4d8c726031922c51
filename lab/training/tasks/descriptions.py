"""Descriptions of an object, an animal or a place, in an order and wording of the writer's choice."""

import random

from ..item import Item, Task
from ..text_grammar import expand, pick, sentences

PROMPTS = (
    "Describe a {adjective} {noun}.", "What does a {adjective} {noun} look like?", "Describe a {noun} in a few sentences.",
    "Give me a short description of a {adjective} {noun}.", "Paint me a picture in words: a {adjective} {noun} {time}.",
    "Tell me about a {noun} {time}.", "How would you describe a {adjective} {noun} {time}?",
)  # fmt: skip
RULES = {
    "noun": ("lighthouse", "market", "library", "garden", "bicycle", "kitchen", "river", "train station", "lamp", "horse", "bakery",
             "bridge", "violin", "mountain hut", "ship", "park", "clock", "bookshop", "lake", "workshop", "sofa", "street"),
    "adjective": ("small", "old", "modern", "busy", "quiet", "colorful", "forgotten", "famous", "tall", "narrow", "dusty", "elegant"),
    "time": ("in the morning", "at night", "in winter", "in autumn", "on a sunny day", "after the rain", "in spring", "at noon"),
    "look": ("the {noun} is {adjective} and {quality}.", "it is a {adjective} {noun} with {part}.",
             "at first sight the {noun} seems {quality}, {contrast}.", "you notice {part} first.",
             "{time_intro} the {noun} looks {quality}.", "imagine a {adjective} {noun} with {part} and {part}."),
    "quality": ("peaceful", "a little worn", "full of life", "bright", "strange", "warm and friendly", "almost empty", "perfect",
                "simple", "mysterious"),
    "contrast": ("but it has a long history", "yet everyone knows it", "although nothing is broken", "but only from far away",
                 "and that is its charm", "but a closer look tells more"),
    "part": ("red bricks", "tall windows", "a green door", "soft shadows", "heavy wooden beams", "thin silver lines",
             "a smell of fresh bread", "polished metal", "bright flags", "deep scratches", "a rusty sign", "white flowers"),
    "time_intro": ("in the early light", "seen from above", "from close up", "when it gets dark", "in the afternoon sun", "from the side"),
    "sense": ("you can hear {sound} and smell {smell}.", "there is {sound} in the air.", "the air smells of {smell}.",
              "everything around is {quality}, only {sound} can be heard.", "it feels {touch} when you touch it."),
    "sound": ("soft voices", "distant bells", "the wind", "dripping water", "laughter", "a steady hum", "footsteps", "birds"),
    "smell": ("old wood", "coffee", "wet grass", "salt and fish", "paper", "smoke", "oranges", "fresh paint"),
    "touch": ("cold and smooth", "rough", "warm", "soft like velvet", "heavier than expected", "dry"),
    "people": ("{who} {do} here every {often}.", "sometimes {who} {do} nearby.", "most people {pass}, but {who} {stay}.",
               "on such a day {who} {do} for hours."),
    "who": ("children", "old men", "tourists", "two friends", "students", "a tired worker and his dog", "neighbors"),
    "do": ("meet", "sit and talk", "take pictures", "play cards", "wait for the bus", "feed the birds", "share a meal"),
    "often": ("morning", "Sunday", "week", "summer", "evening"),
    "pass": ("walk past", "never look up", "hurry on", "forget it soon"),
    "stay": ("stay", "come back", "take their time", "remember it", "stop and smile"),
    "close": ("it is a {noun} you do not forget.", "that is what makes this {noun} special.", "no other {noun} is like it.",
              "one could stay there all {often}.", "in short: {quality} and {quality}."),
}  # fmt: skip
SHAPES = (
    ("look", "sense", "close"),
    ("look", "look", "people", "close"),
    ("look", "sense", "people"),
    ("look", "people", "sense", "close"),
    ("look", "look", "sense"),
)


def draw(rng: random.Random) -> Item:
    bound = {slot: rng.choice(RULES[slot]) for slot in ("noun", "adjective", "time")}
    text = expand(rng, RULES, pick(rng, PROMPTS), bound)
    return Item("descriptions", text, sentences(rng, RULES, pick(rng, SHAPES), bound))


TASK = Task("descriptions", draw, share=1.0)
