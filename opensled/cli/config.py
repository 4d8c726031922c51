"""Options: one frozen dataclass per verb holds the defaults; config_layers.py fills it.

`option(...)` describes a field once; its flag, its environment twin and its key in `opensled.toml` follow from it.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from opensled.core.errors import UsageError
from opensled.core.files import user_path
from opensled.core.suggestion import did_you_mean

# Variables that all commands read, and that are no option of all; Kubernetes sets others for a service of our name
SWITCHES = ("OPENSLED_CONFIG", "OPENSLED_NO_CONFIG", "OPENSLED_CACHE_DIR")
FOREIGN = re.compile(r"OPENSLED(_\w+)?_(SERVICE|PORT)(_\w+)?")
FOLDER_FILE = Path("opensled.toml")  # of the current folder, which may be a stranger's
WORDS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


def option(default: Any, help: str, **facts: Any) -> Any:
    """A dataclass field with a flag, an environment twin and a key in the configuration files; `facts`: of `Option`."""
    return field(default=default, metadata={"help": help, **facts})


@dataclass(frozen=True, kw_only=True)
class Option:
    """One field of a verb's configuration: its flags, variable and key."""

    name: str  # of the dataclass field
    kind: type  # bool, int, float or str; `int | None` counts as int
    default: Any
    ancestor: int  # 0: the verb's own; more: of a class that it shares with other verbs
    help: str
    metavar: str = ""  # of its value; "" = its name in capitals
    group: str = ""  # title in the help of this option and those that follow it in its class, "" = none
    often: bool = False  # the short help shows it
    # -- the values: `check` raises UsageError for an invalid one, `read` makes of what was written what is meant
    choices: tuple[str, ...] = ()
    low: float = float("-inf")
    high: float = float("inf")
    check: Callable[[Any], object] | None = None
    read: Callable[[Any], Any] | None = None
    # -- the command line
    positional: bool = False  # an argument without a flag, which has no variable and no key either
    rest: bool = False  # it is all that follows `--`, a tuple of str
    optional: bool = False  # a positional argument that may be left out
    bare: bool = False  # its value may stand first, without the flag
    several: bool = False  # a text whose flag may be given several times, each time one more line of it
    # -- the configuration files
    file_only: bool = False  # it is rarely set, and has no flag, only a key and a variable
    table: str = ""  # one of TABLES, for its key instead of that of its verb; it is `file_only`, too
    typed: bool = False  # files cannot set it
    apart: bool = False  # other verbs mean another thing by it: a key above all tables does not count
    # Where nothing else sets it, the server counts that this device was paired with (opensled/cli/paired.py)
    paired: bool = False
    # For the file of a secret: the fields that name the server it is sent to and protect it on its way
    # (opensled/cli/config_trust.py)
    sent_to: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.key

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of this option: a switch has two, one that only a file sets has none."""
        if self.file_only:
            return ()
        return (self.flag, "--no-" + self.key) if self.kind is bool else (self.flag,)

    @property
    def key(self) -> str:
        """As a file spells it."""
        return dashed(self.name)

    @property
    def variable(self) -> str:
        return "OPENSLED_" + self.name.upper()

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
        if self.choices and value not in self.choices:
            near = did_you_mean(value, self.choices) if self.kind is str else ""
            raise UsageError(f"{value!r} is not one of {', '.join(self.choices)}{near}")
        high = self.high
        if self.kind is int and high == float("inf") and value > 10**9:  # libraries count in 32 bits
            high = 10**9
        if self.kind in (int, float) and not self.low <= value <= high:
            raise UsageError(f"{written!r} is out of range: it must be {_range(self.low, high)}")
        if self.check:
            self.check(value)
        return self.read(value) if self.read else value


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
    shared = getattr(config, "OFTEN", ())
    for item in fields(config):
        name, kind, ancestor = item.name, _kind(hints[item.name]), _ancestor(config, item.name)
        made = Option(name=name, kind=kind, default=item.default, ancestor=ancestor, **item.metadata)
        before = found[-1].group if found and found[-1].ancestor == ancestor else ""
        found.append(
            replace(
                made,
                metavar=made.metavar or name.upper(),
                group=made.group or before,
                often=made.often or made.positional or name in shared,
                positional=made.positional or made.rest,
                optional=made.optional or bool(made.bare and made.default),
                file_only=made.file_only or bool(made.table),
            )
        )
    return found


def _ancestor(config: type, name: str) -> int:
    """The class that describes a field, as its place in the method resolution order."""
    return next(
        place for place, each in enumerate(config.__mro__) if name in vars(each).get("__annotations__", ())
    )


def _kind(hint: Any) -> type:
    """`int | None` is an int that may be left out."""
    kind: type = next((part for part in get_args(hint) if part is not NoneType), hint)
    return kind


def dashed(name: str) -> str:
    """The key of a field, as it is written in a file."""
    return name.replace("_", "-")


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
