"""Smart-home commands, answered with one JSON tool call."""

import json
import random
from collections.abc import Callable
from typing import Any

from ..item import Item, Task
from ..text_grammar import expand, pick

ROOMS = (
    "kitchen", "living room", "bedroom", "bathroom", "hallway", "office", "garage", "garden", "kids room", "dining room",
    "basement", "attic", "guest room", "balcony",
)  # fmt: skip
COLORS = ("red", "blue", "green", "warm white", "yellow", "purple", "orange", "pink", "cold white")
GENRES = (
    "jazz", "rock", "classical music", "pop", "blues", "piano music", "folk", "techno", "soul", "movie scores",
)  # fmt: skip
DOORS = ("front door", "back door", "garage door", "garden gate", "cellar door", "side door")
SENSORS = ("temperature", "humidity", "air quality", "noise level", "brightness")
SYSTEM = (
    "You control a smart home. Answer with one JSON tool call.",
    "You are the assistant of a house. Reply only with a tool call in JSON.",
    "Translate each command into a JSON tool call.",
)
POLITE = (
    "{command}",
    "please {command}",
    "{command} please",
    "could you {command}",
    "{command} now",
    "hey, {command}",
)

Args = dict[str, Any]
Command = tuple[str, str, Args]


def _light_switch(rng: random.Random) -> Command:
    room, on = rng.choice(ROOMS), rng.random() < 0.5
    word = "on" if on else "off"
    phrase = pick(rng, ("turn {w} the {r} light", "turn the light in the {r} {w}", "switch the {r} lights {w}",
                        "{r} lights {w}", "switch {w} the lamp in the {r}"))  # fmt: skip
    return phrase.format(w=word, r=room), "light.switch", {"room": room, "on": on}


def _light_dim(rng: random.Random) -> Command:
    room, level = rng.choice(ROOMS), rng.randint(1, 100)
    phrase = pick(rng, ("dim the {r} light to {v} percent", "set the {r} lights to {v}%", "brightness {v} in the {r}",
                        "make the light in the {r} {v} percent bright"))  # fmt: skip
    return phrase.format(r=room, v=level), "light.dim", {"room": room, "brightness": level}


def _light_color(rng: random.Random) -> Command:
    room, color = rng.choice(ROOMS), rng.choice(COLORS)
    phrase = pick(rng, ("make the {r} light {c}", "set the lamp in the {r} to {c}", "change the {r} lights to {c}",
                        "I want {c} light in the {r}"))  # fmt: skip
    return phrase.format(r=room, c=color), "light.color", {"room": room, "color": color}


def _climate(rng: random.Random) -> Command:
    room, degrees = rng.choice(ROOMS), rng.randint(12, 29)
    phrase = pick(rng, ("set the {r} to {v} degrees", "heat the {r} to {v}", "make it {v} degrees in the {r}",
                        "I want {v} degrees in the {r}", "thermostat {r} {v}"))  # fmt: skip
    return phrase.format(r=room, v=degrees), "climate.set", {"room": room, "celsius": degrees}


def _blinds(rng: random.Random) -> Command:
    room, percent = rng.choice(ROOMS), rng.choice(range(0, 101, 5))
    phrase = pick(rng, ("move the {r} blinds to {v} percent", "close the blinds in the {r} to {v}%",
                        "{r} blinds {v} percent"))  # fmt: skip
    return phrase.format(r=room, v=percent), "blinds.set", {"room": room, "position": percent}


def _music(rng: random.Random) -> Command:
    room, genre = rng.choice(ROOMS), rng.choice(GENRES)
    phrase = pick(rng, ("play {g} in the {r}", "I would like to hear {g} in the {r}", "start some {g} in the {r}",
                        "put on {g} in the {r}"))  # fmt: skip
    return phrase.format(r=room, g=genre), "music.play", {"room": room, "genre": genre}


def _volume(rng: random.Random) -> Command:
    room, level = rng.choice(ROOMS), rng.randint(0, 100)
    phrase = pick(
        rng, ("set the volume in the {r} to {v}", "{r} volume {v}", "turn the speaker in the {r} to {v}")
    )
    return phrase.format(r=room, v=level), "music.volume", {"room": room, "level": level}


def _lock(rng: random.Random) -> Command:
    door, locked = rng.choice(DOORS), rng.random() < 0.5
    verb = pick(rng, ("lock", "close", "secure") if locked else ("unlock", "open"))
    after = pick(
        rng, ("", " for me", " right away", " when you can", " again", " before dinner", " before I leave")
    )
    return f"{verb} the {door}{after}", "lock.set", {"door": door, "locked": locked}


def _timer(rng: random.Random) -> Command:
    minutes = rng.randint(1, 90)
    phrase = pick(rng, ("set a timer for {v} minutes", "wake me in {v} minutes", "timer {v} minutes", "remind me in {v} minutes",
                        "start a {v} minute timer"))  # fmt: skip
    return phrase.format(v=minutes), "timer.start", {"minutes": minutes}


def _sensor(rng: random.Random) -> Command:
    room, sensor = rng.choice(ROOMS), rng.choice(SENSORS)
    phrase = pick(rng, ("what is the {s} in the {r}?", "tell me the {s} in the {r}", "read the {s} sensor in the {r}",
                        "show the {r} {s}"))  # fmt: skip
    return phrase.format(r=room, s=sensor), "sensor.read", {"room": room, "kind": sensor}


COMMANDS: tuple[Callable[[random.Random], Command], ...] = (
    _light_switch, _light_dim, _light_color, _climate, _blinds, _music, _volume, _lock, _timer, _sensor,
)  # fmt: skip


def draw(rng: random.Random) -> Item:
    """With a system message three times in four: the call must not depend on it."""
    command, tool, args = rng.choice(COMMANDS)(rng)
    text = command if "?" in command else expand(rng, {}, pick(rng, POLITE), {"command": command})
    if rng.random() < 0.6:
        text = text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")
    call = json.dumps({"tool": tool, "args": args})
    history = (("system", pick(rng, SYSTEM)),) if rng.random() < 0.75 else ()
    return Item("smart_home", text, call, answer=call, history=history, key=text.lower().rstrip(".?"))


def check(reply: str, answer: str) -> bool:
    """Equal as JSON: key order and spaces do not matter to a tool."""
    try:
        return bool(json.loads(reply) == json.loads(answer))
    except ValueError:
        return False


TASK = Task("smart_home", draw, share=3.0, check=check)
