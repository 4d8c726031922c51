"""What `opensled COMMAND --help` prints: the options used most, in groups; with --help-all every option."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from opensled.cli.config import Option

MOST = 12  # options of a short page; a command with no more of them shows all
WIDEST = 100  # columns
LEFT = 26  # columns of flags; longer ones stand on a line of their own


def help_page(
    name: str, summary: str, example: str, options: Sequence[Option], everything: bool = False
) -> str:
    """The help of a command; `everything`: with all flags and their environment variables."""
    flagged = [item for item in options if not item.file_only]
    shown = flagged if everything or len(flagged) <= MOST else [item for item in flagged if item.often]
    width = min(WIDEST, shutil.get_terminal_size().columns)
    positional = [item for item in options if (item.positional and not item.rest) or item.bare]
    arguments = [f"[{item.metavar}]" if item.optional else item.metavar for item in positional]
    rest = [f"[{item.metavar}]" for item in options if item.rest]
    parts = [" ".join(["usage: opensled", name, *arguments, "[OPTION...]", *rest]), summary]
    for title in _titles(shown):
        entries = [_entry(item, width, everything) for item in shown if _title(item) == title]
        parts.append("\n".join([f"{title}:", *entries]))
    if len(shown) < len(flagged):
        parts.append(f"These are {len(shown)} of {len(flagged)} options; all: opensled {name} --help-all")
    elif len(flagged) < len(options):
        rare = len(options) - len(flagged)
        parts.append(f"{rare} more are set in a configuration file: opensled config init")
    return "\n\n".join([*parts, f"example:\n  {example}"])


def _titles(options: Sequence[Option]) -> list[str]:
    """The groups, those of the command itself before those that it shares with others."""
    return list(dict.fromkeys(_title(item) for item in sorted(options, key=lambda item: item.ancestor)))


def _title(item: Option) -> str:
    return "arguments" if item.positional else item.group or "options"


def _entry(item: Option, width: int, everything: bool) -> str:
    flags = _flags(item, everything)
    text = " ".join(filter(None, [item.help, _facts(item, everything)]))
    lines = textwrap.wrap(text, max(20, width - LEFT), break_long_words=False, break_on_hyphens=False)
    first = f"  {flags}" if len(flags) > LEFT - 4 else f"  {flags:{LEFT - 2}}{lines.pop(0)}"
    return "\n".join([first, *(" " * LEFT + line for line in lines)])


def _flags(item: Option, everything: bool) -> str:
    if item.positional:
        return item.metavar
    if item.kind is bool:
        return ", ".join(item.flags) if everything or item.default else item.flag
    return f"{item.flag} {'|'.join(item.choices) or item.metavar}"


def _facts(item: Option, everything: bool) -> str:
    """What stands in parentheses: the default, and the environment variable."""
    facts = []
    if item.kind is bool:
        facts += ["default on"] if item.default else []
    elif item.default not in (None, "") and not item.positional:
        default = f"{item.default:g}" if item.kind is float else str(item.default).replace(",", ", ")
        facts.append(f"default {default}")
    if everything and not item.positional:
        facts.append(f"env {item.variable}")
    return f"({'; '.join(facts)})" if facts else ""
