"""The layers of a verb's configuration: flags > environment > files > the paired server > defaults."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from opensled.cli import paired
from opensled.cli.config import FOLDER_FILE, Option, config_files, options
from opensled.cli.config_file import ConfigFile
from opensled.cli.config_trust import require_trust

Config = TypeVar("Config")


def resolve(
    config: type[Config],
    section: str,
    flags: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    files: Iterable[Path] | None = None,
) -> Config:
    """A `config` from its layers: see `merge_layers`, which also knows where the values come from."""
    return config(**merge_layers(config, section, flags, environ, files)[0])


def merge_layers(
    config: type,
    section: str,
    flags: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    files: Iterable[Path] | None = None,
    sections: Iterable[str] = (),
    keys: Callable[[], Collection[str]] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values from their layers: `flags` (by field name) > environment > files, first one first > the paired server >
    defaults. The second ones are those that FOLDER_FILE decides.

    `section` is the verb's table in the files, "models.eval" for a nested table; `sections` are all
    tables that a file may have (empty: any). A key above all tables counts for every verb that has it, less than one in
    the verb's own table; `keys` gives the field names of all verbs (None: any). Raises UsageError for a bad value, and
    for a secret that the file of the current folder sends elsewhere.
    """
    known = {item.name: item for item in options(config) if not item.positional}
    paths = list(config_files() if files is None else files)
    written = {name: item for name, item in known.items() if not item.typed}
    read = {path: ConfigFile(path, section, written, set(sections), keys).values() for path in paths}
    above = _from_environment(known, os.environ if environ is None else environ) | dict(flags)
    folder = read.get(FOLDER_FILE, {})
    below = [values for path, values in reversed(read.items()) if path != FOLDER_FILE]
    trusted = {name: value for values in (*below, above) for name, value in values.items()}
    decided = {name: value for name, value in folder.items() if name not in above}
    if files is None and any(item.paired for item in known.values()):
        trusted = paired.values(trusted | decided) | trusted
    require_trust(known.values(), trusted, decided)
    return trusted | decided, decided


def _from_environment(known: dict[str, Option], environ: Mapping[str, str]) -> dict[str, Any]:
    """An empty variable counts as not set; quotes around one come from a file that a shell would read."""
    given = {
        name: re.sub(r"""^(['"])(.*)\1$""", r"\2", environ.get(item.variable, "").strip(), flags=re.DOTALL)
        for name, item in known.items()
    }
    return {name: known[name].parse(text, known[name].variable) for name, text in given.items() if text}
