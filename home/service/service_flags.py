"""The flags of a service: checked by the parser of its own verb before anything is written, and made independent of the
folder in which they were given."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opensled.cli.config import Option, options
from opensled.cli.main import CONFIGS, VERBS, parse_flags
from opensled.core.errors import NotFound, UsageError
from opensled.core.files import user_path
from opensled.models.store import can_be_fetched
from opensled.process import distribution

PATHS = ("FILE", "FOLDER")  # values of these kinds are paths
MODEL = "MODEL"  # a value of this kind may be one
OFF = "off"  # no file (edge_client/offline/modes.py has the meaning of each option)
# Secrets and certificates, by the names of their options; systemd loads them, so that they may stay root's.
CREDENTIAL = re.compile(r"(^|_)(tokens?|tls|keys)(_|$)")
# Flags, and characters of one; chosen, far below systemd's limit for a line.
MAX_WORDS, MAX_LENGTH = 200, 4096


@dataclass(frozen=True)
class Given:
    """One option of a service with its value; `path`: the file or folder that the value names, absolute."""

    option: Option
    value: Any
    path: Path | None = None

    @property
    def is_credential(self) -> bool:
        """Whether the file is a secret or a certificate."""
        return self.option.metavar == "FILE" and bool(CREDENTIAL.search(self.option.name))

    def words(self, value: str | None = None) -> list[str]:
        """The option as words of a command line; `value` in place of its own."""
        if self.option.kind is bool:
            return [self.option.flags[0 if self.value else 1]]
        text = value if value is not None else str(self.path or self.value)
        return [f"{self.option.flag}={text}"] if text.startswith("-") else [self.option.flag, text]


def check_flags(service: str, words: Iterable[str]) -> list[Given]:
    """The flags of a service, in their order. Raises UsageError or NotFound for what it would refuse itself."""
    words = list(words)
    distribution.require(service, VERBS[service].modules)
    _require_plain(words)
    values = parse_flags(service, words)
    if service == "edge" and {"pair", "host"} & values.keys():
        raise UsageError("pair this device before it becomes a service: opensled edge --pair CODE HOST")
    return [bind_option(service, name, value) for name, value in values.items()]


def option_of(service: str, name: str) -> Option:
    """One option of a service by the name of its field."""
    return next(item for item in options(CONFIGS.get(service)) if item.name == name)


def _require_plain(words: list[str]) -> None:
    if len(words) > MAX_WORDS or max(map(len, words), default=0) > MAX_LENGTH:
        raise UsageError(f"a service takes at most {MAX_WORDS} flags of at most {MAX_LENGTH} characters each")
    for word in words:
        if not word.isprintable():  # surrogates of undecodable bytes are not printable either
            raise UsageError(f"{word!r} holds a character that a unit file cannot: use printable text")


def bind_option(service: str, name: str, value: Any) -> Given:
    """An option with its value. Raises NotFound for a file with a secret or a certificate that is not there."""
    item = option_of(service, name)
    found = Given(item, value, _path(item, value))
    if found.path and found.is_credential and not found.path.is_file():
        raise NotFound(f"{item.flag}: {found.path} does not exist; the service would not start without it")
    return found


def _path(item: Option, value: Any) -> Path | None:
    """The file or folder that a value names, from the current folder; None if it names none."""
    if not value or value == OFF or item.metavar not in (*PATHS, MODEL):
        return None
    path = user_path(value)
    if item.metavar in PATHS or (path.exists() and ("/" in value or path.suffix)):
        return Path.cwd() / path
    return None


def value_of(flags: Iterable[Given], service: str, name: str) -> Any:
    """The value of one option of the service: the given one, else its default."""
    values = {each.option.name: each.value for each in flags}
    return values.get(name, option_of(service, name).default)


def model_names(flags: Iterable[Given]) -> list[str]:
    """Models that these flags name, rather than giving a path, and that `opensled pull` may know."""
    named = [each.value for each in flags if each.option.metavar == MODEL and each.path is None]
    return [name for name in named if name and can_be_fetched(name)]
