"""Suggestions for unknown names: a slip of the keys finds its name, another word finds none."""

import pytest

from hw_profiles import catalog
from hw_profiles.catalog import KINDS
from opensled.cli import main as cli
from opensled.cli.config import options
from opensled.core.suggestion import did_you_mean, nearest

COMMANDS = sorted({word for name in cli.VERBS for word in name.split()})
KEYS = [name.replace("_", "-") for name in cli._keys()]
FLAGS = sorted({flag for name in cli.VERBS for item in options(cli.CONFIGS.get(name)) for flag in item.flags})
VARIABLES = ["OPENSLED_" + name.upper() for name in cli._keys()]
PROFILES = sorted({name for kind in KINDS for name in catalog.names(kind)})
UNRELATED = (
    "bogus",
    "boguss",
    "banana",
    "frobnicate",
    "hello",
    "weather",
    "zzz",
    "x",
    "kitchen",
    "foo-bar",
    "quux",
)


def slips(name: str) -> list[str]:
    """The name with one letter left out, written twice, or exchanged with the next one."""
    places = range(1, len(name) - 1)
    return [
        slip
        for at in places
        for slip in (
            name[:at] + name[at + 1 :],
            name[:at] + name[at] + name[at:],
            name[:at] + name[at + 1] + name[at] + name[at + 2 :],
        )
    ]


@pytest.mark.parametrize("known", [COMMANDS, KEYS, PROFILES], ids=["commands", "keys", "profiles"])
def test_a_slip_of_the_keys_finds_a_name_and_nearly_always_the_right_one(known):
    tried = [(slip, name) for name in known if len(name) >= 4 for slip in slips(name) if slip not in known]
    found = {(slip, name): nearest(slip, known) for slip, name in tried}
    assert None not in found.values()
    assert sum(near == name for (_, name), near in found.items()) >= 0.93 * len(tried) > 100


@pytest.mark.parametrize("word", UNRELATED)
def test_another_word_finds_no_name(word):
    assert nearest(word, COMMANDS) is None
    assert nearest(word, KEYS) is None
    assert nearest(word, PROFILES) is None
    # What all names of a kind share makes no likeness
    assert nearest(f"--{word}", FLAGS) is None
    assert nearest(f"--no-{word}", FLAGS) is None
    assert nearest(f"OPENSLED_{word.upper()}", VARIABLES) is None


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("--servre", FLAGS, "--server"),
        ("--no-prefix-cahe", FLAGS, "--no-prefix-cache"),
        ("--draft_model", FLAGS, "--draft-model"),
        ("-model", FLAGS, "--model"),
        ("--temp", FLAGS, "--temperature"),
        ("--drafter", ["--drafts", "--server-drafter"], "--server-drafter"),  # a whole word of it
        ("OPENSLED_SERVRE", VARIABLES, "OPENSLED_SERVER"),
        ("Serve", COMMANDS, "serve"),
        ("gen", COMMANDS, "generate"),
        ("pi5", PROFILES, "pi-5"),
        ("d", COMMANDS, None),  # one letter says too little
        ("draft", ["drafts list", "draft-tables build"], None),  # two begin so
    ],
)
def test_nearest(word, known, meant):
    assert nearest(word, known) == meant


def test_an_error_names_the_near_choice_or_says_nothing():
    assert did_you_mean("bond", ["bound"]) == "; did you mean bound?"
    assert did_you_mean("bogus", ["bound"]) == ""
