"""Short stories about a hero in a place, both named by the prompt: many beginnings, events and ends."""

import random

from ..item import Item, Task
from ..text_grammar import expand, pick, sentences

PROMPTS = (
    "Write a short story about a {hero} in {place}.", "Tell me a story about a {hero} and a {thing}.",
    "Tell me a bedtime story with a {hero} who lives in {place}.", "A story about a {hero}, a {thing} and {place}, please.",
    "Make up a tale: a {hero} finds a {thing}.", "I want to hear about a {hero} in {place}.",
    "Write a few sentences about a {hero} who looks for a {thing}.",
)  # fmt: skip
RULES = {
    "hero": ("fox", "robot", "girl", "boy", "sailor", "baker", "dragon", "cat", "king", "gardener", "mouse", "painter", "bear",
             "witch", "train driver", "owl", "farmer", "knight", "tailor", "rabbit"),
    "place": ("a dark forest", "a small village", "the old town", "a castle by the sea", "a quiet valley", "the mountains",
              "a busy harbor", "a snowy land", "the big city", "an empty house", "a green island", "the desert"),
    "thing": ("golden key", "lost letter", "red balloon", "silver bell", "broken clock", "magic lamp", "secret map", "blue stone",
              "wooden flute", "old book", "tiny seed", "strange box"),
    "name": ("Mila", "Otto", "Luna", "Finn", "Rosa", "Emil", "Ida", "Hugo", "Nina", "Leo", "Greta", "Tom"),
    "adjective": ("curious", "brave", "lonely", "clever", "shy", "cheerful", "stubborn", "kind", "sleepy", "careful"),
    "opening": ("once upon a time there was a {adjective} {hero} called {name}.", "in {place} lived a {adjective} {hero}.",
                "there once was a {hero} who {wished}.", "long ago, a {adjective} {hero} named {name} lived in {place}.",
                "{name} was a {adjective} {hero} from {place}.", "nobody in {place} was as {adjective} as {name} the {hero}."),
    "wished": ("wanted to see the world", "could not sleep", "never said a word", "dreamed of the stars", "had lost a friend",
               "loved to sing", "was afraid of the night", "collected stories"),
    "event": ("{when} the {hero} found a {thing} under {spot}.", "{when} {name} heard a voice from {spot}.",
              "{when} a storm came and the {hero} had to hide behind {spot}.", "{when} a stranger brought a {thing}.",
              "{when} the {hero} opened a door near {spot} and saw a {thing}.", "{when} {name} met a {other} who {wished}."),
    "when": ("one morning", "one day", "one cold night", "after a long winter", "on the first day of spring", "just before dawn",
             "when the moon was full", "while everyone slept"),
    "spot": ("an old tree", "the bridge", "a heap of stones", "the well", "a wooden gate", "the tower", "the stairs"),
    "other": ("wise turtle", "small bird", "traveling merchant", "silent child", "friendly giant", "gray wolf", "proud peacock"),
    "feeling": ("the {hero} was {felt} and {reacted}.", "{name} felt {felt}, but {reacted} anyway.",
                "at first {name} was {felt}, then the {hero} {reacted}.", "nobody had ever seen such a {thing}, so {name} {reacted}."),
    "felt": ("surprised", "afraid", "full of joy", "very tired", "confused", "proud", "a little sad"),
    "reacted": ("began to run", "sat down to think", "laughed out loud", "followed the light", "asked for help", "made a plan",
                "took one more step", "whispered a song"),
    "turn": ("but the {thing} was {state}.", "suddenly the {thing} started to {act}.", "the {other} said: \"{advice}\"",
             "and then, without a sound, the {thing} began to {act}.", "they walked together until they reached {spot}."),
    "state": ("heavier than it looked", "broken in two", "warm like the sun", "gone", "covered with dust", "not what it seemed"),
    "act": ("glow", "sing", "tremble", "grow", "float", "speak", "melt"),
    "advice": ("Do not be afraid.", "Keep it safe.", "Give it back.", "Follow the river.", "Trust your heart.", "Wait until morning."),
    "end": ("from that day on {place} was a brighter place.", "and the {hero} was never {adjective} again.",
            "in the end {name} gave the {thing} to {receiver}.", "and if you listen at night, you can still hear the {thing}.",
            "so the {hero} went home and told everyone the story.", "since then the {hero} and the {other} are best friends."),
    "receiver": ("a child", "the {other}", "the old queen", "the people of the town", "the sea", "a friend"),
}  # fmt: skip
PLOTS = (
    ("opening", "event", "feeling", "end"),
    ("opening", "event", "feeling", "turn", "end"),
    ("opening", "event", "turn", "end"),
    ("opening", "event", "feeling", "event", "turn", "end"),
)


def draw(rng: random.Random) -> Item:
    """What is drawn once per story stays: hero, place, thing and name return in every sentence."""
    bound = {slot: rng.choice(RULES[slot]) for slot in ("hero", "place", "thing", "name", "other")}
    text = expand(rng, RULES, pick(rng, PROMPTS), bound)
    return Item("stories", text, sentences(rng, RULES, pick(rng, PLOTS), bound))


TASK = Task("stories", draw, share=1.2)
