"""Configuration: one frozen dataclass per verb holds the defaults; filled from flags > environment > files.

`option(...)` describes a field once; its flag, its environment twin and its key in `opensled.toml` follow from it.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from opensled.cli import paired
from opensled.cli.config_file import ConfigFile, dashed
from opensled.cli.config_trust import require_trust
from opensled.core.errors import UsageError
from opensled.core.files import user_path
from opensled.core.suggestion import did_you_mean

Config = TypeVar("Config")

# Variables that all commands read, and that are no option of all; Kubernetes sets others for a service of our name
SWITCHES = ("OPENSLED_CONFIG", "OPENSLED_NO_CONFIG", "OPENSLED_CACHE_DIR")
FOREIGN = re.compile(r"OPENSLED(_\w+)?_(SERVICE|PORT)(_\w+)?")
FOLDER_FILE = Path("opensled.toml")  # of the current folder, which may be a stranger's
WORDS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float = float("-inf"),
    high: float = float("inf"),
    metavar: str | None = None,
    positional: bool = False,
    rest: bool = False,
    optional: bool = False,
    bare: bool = False,
    typed: bool = False,
    paired: bool = False,
    check: Callable[[Any], object] | None = None,
    read: Callable[[Any], Any] | None = None,
    sent_to: tuple[str, ...] = (),
    group: str = "",
    often: bool = False,
    apart: bool = False,
    several: bool = False,
    file_only: bool = False,
    table: str = "",
) -> Any:
    """A dataclass field with a flag, an environment twin and a key in the configuration files.

    A value lies in [low, high] and among `choices`; `check` raises UsageError for an invalid value, and `read` makes of
    what was written what is meant. A positional argument comes from the command line only; `rest`: it is all that
    follows `--`, a tuple of str. `bare`: its value may stand first, without the flag.
    `sent_to`: for the file of a secret, the fields that name the server it is sent to and protect it on its way
    (opensled/cli/config_trust.py). `group`: title in the help of this
    option and those that follow it in its class; `often`: used so often that the short help shows it. `apart`: other
    verbs mean another thing by this name, so a key above all tables of a file does not count for it. `optional`: a
    positional argument that may be left out. `typed`: configuration files cannot set it. `paired`: where nothing else
    sets it, the server counts that this device was paired with (opensled/cli/paired.py). `several`: a
    text whose flag may be given several times, each time one more line of it. `file_only`: it is
    rarely set, and has no flag, only a key and a variable. `table`: one of TABLES, in which its key stands instead of
    in the table of its verb; it is `file_only`, too.
    """
    rules = {"choices": choices, "low": low, "high": high, "check": check, "read": read}
    facts = {
        "help": help,
        "metavar": metavar,
        "positional": positional or rest,
        "rest": rest,
        "sent_to": sent_to,
    }
    facts |= {"group": group, "often": often, "apart": apart}
    facts |= {"optional": optional, "typed": typed, "paired": paired, "several": several}
    facts["bare"] = bare
    facts |= {"file_only": file_only or bool(table), "table": table}
    return field(default=default, metadata=facts | rules)


@dataclass(frozen=True)
class Option:
    """One field of a verb's configuration: its flags, variable and key."""

    name: str  # of the dataclass field
    kind: type  # bool, int, float or str; `int | None` counts as int
    default: Any
    metadata: Mapping[str, Any]
    group: str  # title in the help, "" = none
    ancestor: int  # 0: the verb's own; more: of a class that it shares with other verbs
    often: bool  # the short help shows it

    @property
    def flag(self) -> str:
        return "--" + dashed(self.name)

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of this option: a switch has two, one that only a file sets has none."""
        if self.file_only:
            return ()
        return (self.flag, "--no-" + self.flag[2:]) if self.kind is bool else (self.flag,)

    @property
    def key(self) -> str:
        """As a file spells it."""
        return dashed(self.name)

    @property
    def file_only(self) -> bool:
        return bool(self.metadata["file_only"])

    @property
    def table(self) -> str:
        """Of the files, "" = that of the verb."""
        return str(self.metadata["table"])

    @property
    def variable(self) -> str:
        return "OPENSLED_" + self.name.upper()

    @property
    def metavar(self) -> str:
        return self.metadata["metavar"] or self.name.upper()

    @property
    def positional(self) -> bool:
        return bool(self.metadata["positional"])

    @property
    def rest(self) -> bool:
        return bool(self.metadata["rest"])

    @property
    def bare(self) -> bool:
        return bool(self.metadata["bare"])

    @property
    def several(self) -> bool:
        return bool(self.metadata["several"])

    @property
    def optional(self) -> bool:
        return bool(self.metadata["optional"] or (self.bare and self.default))

    @property
    def help(self) -> str:
        return str(self.metadata["help"])

    def parse(self, text: str, source: str) -> Any:
        """The value that `text` spells; raises UsageError naming `source`."""
        try:
            value = WORDS[text.lower()] if self.kind is bool else self.kind(text)
        except (KeyError, ValueError):
            raise UsageError(f"{source}: {text!r} is not {_SPELLED[self.kind]}") from None
        return self.check_value(value, source)

    def check_value(self, value: Any, source: str) -> Any:
        """`value` of the right type and within its rules, or UsageError naming `source`."""
        right = (int, float) if self.kind is float else self.kind
        if not isinstance(value, right) or (isinstance(value, bool) and self.kind is not bool):
            raise UsageError(f"{source}: {value!r} is not {_SPELLED[self.kind]}")
        try:
            return self._read(self.kind(value), value)
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from None

    def _read(self, value: Any, written: Any) -> Any:
        choices, low, high, check = (self.metadata[rule] for rule in ("choices", "low", "high", "check"))
        if choices and value not in choices:
            near = did_you_mean(value, choices) if self.kind is str else ""
            raise UsageError(f"{value!r} is not one of {', '.join(choices)}{near}")
        if self.kind is int and high == float("inf") and value > 10**9:  # libraries count in 32 bits
            high = 10**9
        if self.kind in (int, float) and not low <= value <= high:
            raise UsageError(f"{written!r} is out of range: it must be {_range(low, high)}")
        if check:
            check(value)
        return self.metadata["read"](value) if self.metadata["read"] else value


_SPELLED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _range(low: float, high: float) -> str:
    if high == float("inf"):
        return f"at least {low:.10g}"
    return f"from {low:.10g} to {high:.10g}"


def options(config: type) -> list[Option]:
    """The options of a configuration dataclass, in the order of its fields.

    `OFTEN` of the class: names of options that it shares with other verbs, and that its own short help shows, too.
    """
    hints, found = get_type_hints(config), list[Option]()
    for item in fields(config):
        ancestor = _ancestor(config, item.name)
        before = found[-1].group if found and found[-1].ancestor == ancestor else ""
        group = item.metadata["group"] or before
        often = _is_often(config, item)
        kind = _kind(hints[item.name])
        found.append(Option(item.name, kind, item.default, item.metadata, group, ancestor, often))
    return found


def _is_often(config: type, item: Field[Any]) -> bool:
    marked = item.metadata["often"] or item.metadata["positional"]
    return bool(marked) or item.name in getattr(config, "OFTEN", ())


def _ancestor(config: type, name: str) -> int:
    """The class that describes a field, as its place in the method resolution order."""
    return next(
        place for place, each in enumerate(config.__mro__) if name in vars(each).get("__annotations__", ())
    )


def _kind(hint: Any) -> type:
    """`int | None` is an int that may be left out."""
    kind: type = next((part for part in get_args(hint) if part is not NoneType), hint)
    return kind


def config_files() -> list[Path]:
    """The configuration files, highest precedence first: the one that OPENSLED_CONFIG names, or else those that exist;
    none of these with OPENSLED_NO_CONFIG set."""
    if named := os.environ.get("OPENSLED_CONFIG"):
        return [Path(named)]
    folder = config_folder()
    candidates = [FOLDER_FILE, folder / "config.toml"] if folder else []
    return [path for path in candidates if path.is_file()]


def config_folder() -> Path | None:
    """The folder of this user's configuration; None with OPENSLED_NO_CONFIG set."""
    if os.environ.get("OPENSLED_NO_CONFIG"):
        return None
    return user_folder()


def user_folder() -> Path:
    """The folder of this user's configuration, whatever OPENSLED_NO_CONFIG says."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or user_path("~/.config")) / "opensled"


def resolve(
    config: type[Config],
    section: str,
    flags: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    files: Iterable[Path] | None = None,
) -> Config:
    """A `config` from its layers: see `merge_layers`, which also knows where the values come from."""
    return config(**merge_layers(config, section, flags, environ, files).values)


@dataclass(frozen=True)
class Layered:
    """Values of one verb by field name; `from_folder`: those that FOLDER_FILE decides."""

    values: dict[str, Any]
    from_folder: dict[str, Any]


def merge_layers(
    config: type,
    section: str,
    flags: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    files: Iterable[Path] | None = None,
    sections: Iterable[str] = (),
    keys: Callable[[], Collection[str]] | None = None,
) -> Layered:
    """Values from their layers: `flags` (by field name) > environment > files, first one first > the paired server >
    defaults.

    `section` is the verb's table in the files, "models.eval" for a nested table; `sections` are all
    tables that a file may have (empty: any). A key above all tables counts for every verb that has it, less than one in
    the verb's own table; `keys` gives the field names of all verbs (None: any). Raises UsageError for a bad value, and
    for a secret that the file of the current folder sends elsewhere.
    """
    known = {item.name: item for item in options(config) if not item.positional}
    paths = list(config_files() if files is None else files)
    written = {name: item for name, item in known.items() if not item.metadata["typed"]}
    read = {path: ConfigFile(path, section, written, set(sections), keys).values() for path in paths}
    above = _from_environment(known, os.environ if environ is None else environ) | dict(flags)
    folder = read.get(FOLDER_FILE, {})
    below = [values for path, values in reversed(read.items()) if path != FOLDER_FILE]
    trusted = {name: value for values in (*below, above) for name, value in values.items()}
    decided = {name: value for name, value in folder.items() if name not in above}
    if files is None and any(item.metadata["paired"] for item in known.values()):
        trusted = paired.values(trusted | decided) | trusted
    require_trust(known.values(), trusted, decided)
    return Layered(trusted | decided, decided)


def _from_environment(known: dict[str, Option], environ: Mapping[str, str]) -> dict[str, Any]:
    """An empty variable counts as not set; quotes around one come from a file that a shell would read."""
    given = {
        name: re.sub(r"""^(['"])(.*)\1$""", r"\2", environ.get(item.variable, "").strip(), flags=re.DOTALL)
        for name, item in known.items()
    }
    return {name: known[name].parse(text, known[name].variable) for name, text in given.items() if text}
