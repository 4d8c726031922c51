"""The known name that is nearest to an unknown word: of commands, options, keys, variables, models, profiles."""

from collections.abc import Iterable
from difflib import get_close_matches

# Least similarity of two names (twice their letters in common by all their letters). One slip in a word of four letters
# leaves 0.75 or more; words that merely share letters reach about 0.67, as `report` and `remote` do.
SIMILARITY = 0.75
PREFIX = 3  # letters from which on the only name that begins so is meant
MARKS = ("--no-", "--", "OPENSLED_")  # all names of a kind begin so; it says nothing about their likeness


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The only choice that ends with the whole `word`, one spelt nearly so, or the only one that begins with it."""
    mark = next((mark for mark in MARKS if word.startswith(mark)), "")
    named = {_plain(name, mark): name for name in choices if name.startswith(mark)}
    wanted = _plain(word, mark)
    ends = [name for name in named if name.endswith(f"-{wanted}") and wanted not in named]
    begun = [name for name in named if name.startswith(wanted) and len(wanted) >= PREFIX]
    close = get_close_matches(wanted, named, n=1, cutoff=SIMILARITY)
    found = next((names for names in (ends, close, begun) if len(names) == 1), None)
    return named[found[0]] if found else None


def _plain(name: str, mark: str) -> str:
    """Without what every name has, in lower case, with - for _."""
    return name.removeprefix(mark).replace("_", "-").casefold()


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """What to add to an error about `word`; "" without a near choice."""
    near = nearest(word, choices)
    return f"; did you mean {near}?" if near else ""
