"""One configuration file, as a verb reads it: its values, or an error that names the key and what to write instead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opensled.cli.config import Option, dashed
from opensled.core.errors import UsageError
from opensled.core.files import decode_text
from opensled.core.suggestion import did_you_mean, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLES = ("limits",)  # of several verbs, besides the table of each verb


@dataclass(frozen=True)
class ConfigFile:
    """A file and the verb that reads it.

    `section`: the verb's table, "models.eval" for a nested one; `known`: its options by field name; `sections`: all
    tables that a file may have (empty: any); `keys` gives the field names of all verbs (None: any).
    """

    path: Path
    section: str
    known: Mapping[str, Option]
    sections: Collection[str]
    keys: Callable[[], Collection[str]] | None

    def values(self) -> dict[str, Any]:
        """By field name. Raises UsageError."""
        document = read_file(self.path)
        values = self._above_tables(document)
        for table in dict.fromkeys((self.section, *map(self._table_of, self.known.values()))):
            for key, value in self._content(document, table):
                item = self.known.get(_name(key))
                if item is None or self._table_of(item) != table:
                    raise UsageError(f"{self.path}: {self._misplaced(key, table)}")
                values[item.name] = item.check_value(value, f"{self.path}: {key} in [{table}]")
        return values

    def _above_tables(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Values of the keys above all tables; raises UsageError for an unknown key or table."""
        values = {}
        for key, value in document.items():
            item = self.known.get(_name(key))
            if isinstance(value, dict):
                self._require_table(key)
            elif item is None:
                self._require_key(key)
            elif item.table:
                raise UsageError(f"{self.path}: {_elsewhere(item)}")
            elif not item.apart:
                values[item.name] = item.check_value(value, f"{self.path}: {key}")
        return values

    def _require_table(self, name: str) -> None:
        if not self.sections or name in self.sections:
            return
        near = nearest(name, self.sections)
        hint = f"did you mean [{near}]?" if near else f"sections are {', '.join(sorted(self.sections))}"
        if self.keys and _name(name) in self.keys():
            hint = f"write `{name} = VALUE` above all sections, or in that of its command (see opensled config init)"
        raise UsageError(f"{self.path}: unknown section [{name}]; {hint}")

    def _require_key(self, key: str) -> None:
        """A table that is a value is named when it is read."""
        if self.keys is None or key in self.sections or _name(key) in self.keys():
            return
        hint = did_you_mean(key, map(dashed, self.keys())) or "; see opensled config init"
        raise UsageError(f"{self.path}: unknown key {key!r}{hint}")

    def _table_of(self, item: Option) -> str:
        return item.table or self.section

    def _content(self, document: Mapping[str, Any], table: str) -> Iterator[tuple[str, Any]]:
        """Keys and values of a table, none where the file has no such table."""
        found: Any = document
        for name in table.split("."):
            found = found.get(name, {})
            if not isinstance(found, dict):
                raise UsageError(f"{self.path}: {name} is not a section; write [{table}]")
        yield from found.items()

    def _misplaced(self, key: str, table: str) -> str:
        """What is wrong with a key that its table does not have."""
        item = self.known.get(_name(key))
        if item is not None:
            return (
                _elsewhere(item) if item.table else f"{key!r} belongs in [{self.section}], not in [{table}]"
            )
        near = did_you_mean(key, (each.key for each in self.known.values() if self._table_of(each) == table))
        page = "config init" if table in TABLES else f"{self.section.replace('.', ' ')} --help-all"
        return f"unknown key {key!r} in [{table}]{near or f'; see opensled {page}'}"


def _elsewhere(item: Option) -> str:
    return f"{item.key!r} belongs in [{item.table}]"


def _name(key: str) -> str:
    """The field of a key."""
    return key.replace("-", "_")


def read_file(path: Path) -> dict[str, Any]:
    """The tables of a configuration file; raises UsageError naming it."""
    try:
        return tomllib.loads(decode_text(path.read_bytes()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
