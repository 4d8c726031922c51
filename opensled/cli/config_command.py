"""`opensled config init`: a sample configuration file with every option, its meaning and its default."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from opensled.cli.config import Option, options
from opensled.cli.main import CONFIGS, VERBS

DEVICE_VERBS = ("edge", "generate", "chat")
WIDTH = 100  # columns of the file

HEAD = """\
# Configuration of OpenSLED, as ./opensled.toml or ~/.config/opensled/config.toml. Flags and the environment come first,
# then the file of the folder, then the user's, then what `opensled edge --pair` keeps. Remove the `# ` before an option
# to set it.

# -- every verb that has the option -----------------------------------------------------------------
"""


@dataclass(frozen=True)
class InitConfig:
    """Nothing to choose."""


def init(config: InitConfig) -> int:
    """Print the sample; returns the exit code."""
    print(sample(), end="")
    return 0


def sample() -> str:
    """The file: options that all verbs of a device share on top, the others in their own tables or their verbs'."""
    verbs = {
        name: [item for item in options(CONFIGS.get(name)) if not (item.positional or item.typed)]
        for name in ("serve", *DEVICE_VERBS)
        if VERBS[name].here
    }
    shared = set.intersection(*({item.name for item in verbs[name]} for name in DEVICE_VERBS))
    parts = [HEAD, *_lines(item for item in verbs[DEVICE_VERBS[0]] if item.name in shared)]
    for name, found in verbs.items():
        own = [item for item in found if item.apart or item.name not in shared]
        for table in dict.fromkeys(item.table or name for item in own):
            parts += [f"\n[{table}]\n", *_lines(item for item in own if (item.table or name) == table)]
    return "".join(parts)


def _lines(found: Iterable[Option]) -> Iterator[str]:
    group = ""
    for item in found:
        if item.group != group:
            group = item.group
            yield f"## {group}\n\n"
        comment = textwrap.wrap(item.help, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
        yield "".join(f"# {line}\n" for line in comment)
        yield f"# {line_of(item)}\n\n"


def line_of(item: Option, value: Any = None) -> str:
    """The line that sets an option: to `value`, or else to its default; to what it takes, if it has none."""
    if value is not None:
        return f"{item.key} = {_spelled(value)}"
    return f"{item.key} = {_value(item)}"


def _value(item: Option) -> str:
    if item.default in (None, ""):
        return _spelled(item.metavar) if item.kind is str else item.metavar
    return _spelled(item.default)


def _spelled(value: Any) -> str:
    """TOML spells texts, numbers and switches like JSON."""
    return json.dumps(value, ensure_ascii=False)
