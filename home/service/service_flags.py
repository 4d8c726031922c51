"""The flags of a service: checked by the parser of its own verb before anything is written, and made independent of the
folder in which they were given. Here they are values by the names of their options, in the order given.

A user's service finds what pairing left in that user's folders, and sees changes at once. A service of the system has
an account of its own and sees no home folder. When it starts, systemd gives it copies of root's files, but never the
key of the authority.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opensled.cli import paired
from opensled.cli.config import Option, options, user_folder
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
# What `opensled serve --paired` reads of its folder, by the options that name the same (home/desk/home.py).
HOME_FILES = {"tls_cert": "server.pem", "tls_key": "server.key", "tokens": "tokens.txt"}
Values = dict[str, Any]


def check_flags(service: str, words: Iterable[str]) -> Values:
    """The flags of a service. Raises UsageError or NotFound for what it would refuse itself."""
    words = list(words)
    distribution.require(service, VERBS[service].modules)
    if len(words) > MAX_WORDS or max(map(len, words), default=0) > MAX_LENGTH:
        raise UsageError(f"a service takes at most {MAX_WORDS} flags of at most {MAX_LENGTH} characters each")
    for word in words:
        if not word.isprintable():  # surrogates of undecodable bytes are not printable either
            raise UsageError(f"{word!r} holds a character that a unit file cannot: use printable text")
    values = parse_flags(service, words)
    if service == "edge" and {"pair", "host"} & values.keys():
        raise UsageError("pair this device before it becomes a service: opensled edge --pair CODE HOST")
    return _whole_paths(service, values)


def _whole_paths(service: str, values: Values) -> Values:
    """The values with whole paths. Raises NotFound for a file with a secret or a certificate that is not there."""
    whole = {}
    for name, value in values.items():
        item = option_of(service, name)
        path = path_of(item, value)
        if path and is_credential(item, value) and not path.is_file():
            raise NotFound(f"{item.flag}: {path} does not exist; the service would not start without it")
        whole[name] = str(path) if path else value
    return whole


def option_of(service: str, name: str) -> Option:
    """One option of a service by the name of its field."""
    return next(item for item in options(CONFIGS.get(service)) if item.name == name)


def path_of(item: Option, value: Any) -> Path | None:
    """The file or folder that a value names, from the current folder; None if it names none."""
    if not value or value == OFF or item.metavar not in (*PATHS, MODEL):
        return None
    path = user_path(value)
    if item.metavar in PATHS or (path.exists() and ("/" in value or path.suffix)):
        return Path.cwd() / path
    return None


def is_credential(item: Option, value: Any) -> bool:
    """Whether the value names a file with a secret or a certificate."""
    return item.metavar == "FILE" and value not in ("", OFF) and bool(CREDENTIAL.search(item.name))


def named_paths(service: str, values: Values, credentials: bool) -> list[Path]:
    """Paths in the flags: those of secrets and certificates, or all others."""
    named = [(option_of(service, name), value) for name, value in values.items()]
    paths = (path_of(*each) for each in named if is_credential(*each) == credentials)
    return [path for path in paths if path]


def model_names(service: str, values: Values) -> list[str]:
    """Models that these flags name, rather than giving a path, and that `opensled pull` may know."""
    named = [(option_of(service, name), value) for name, value in values.items() if value]
    return [
        value for item, value in named
        if item.metavar == MODEL and path_of(item, value) is None and can_be_fetched(value)
    ]  # fmt: skip


def with_pairing(service: str, values: Values) -> Values:
    """The flags of a service of the system with what the pairing stands for. Raises NotFound."""
    if service == "edge":
        added = {name: value for name, value in paired.values(values).items() if name not in values}
        return values | _whole_paths(service, added)
    if not values.get("paired"):
        return values
    home = _home(values)
    tokens = home / HOME_FILES["tokens"]
    lines = tokens.read_text("utf-8", "replace").splitlines() if tokens.is_file() else []
    if not any(line.split("#")[0].strip() for line in lines):
        raise NotFound(
            f"no device is paired in {home}, and a service of the system sees later ones only after a restart: pair "
            "one as root first (opensled pair), or install a service of your own account, without sudo"
        )
    kept = {name: value for name, value in values.items() if name not in ("paired", "folder")}
    return kept | _whole_paths(service, {name: str(home / file) for name, file in HOME_FILES.items()})


def pairing_folders(service: str, values: Values) -> list[Path]:
    """Folders with credentials of pairing that a user's service reads itself."""
    if service == "edge":
        folder = paired.paired_folder()
        return [folder] if folder and paired.values(values) else []
    return [_home(values)] if values.get("paired") else []


def _home(values: Values) -> Path:
    return Path(values["folder"]) if values.get("folder") else user_folder() / "home"
