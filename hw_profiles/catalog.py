"""The packaged profiles, a TOML file or a row of one (such as targets.toml) each, and the user's profiles.

The user's profiles are in `profiles/devices` (links, accelerators, targets) beside the configuration file, a file each;
they replace packaged ones of the same id. A path to any other file works as well.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from hw_profiles.profiles import (
    KEYS,
    AcceleratorProfile,
    Curve,
    DeviceProfile,
    DraftSpeed,
    LinkProfile,
    MeasuredLink,
    Quantity,
    TargetShape,
    TrainedHead,
)
from opensled.cli.config import config_folder
from opensled.cli.config_file import read_file
from opensled.core.errors import NotFound, UsageError
from opensled.core.files import user_path
from opensled.core.suggestion import nearest

Profile = TypeVar("Profile", DeviceProfile, LinkProfile, AcceleratorProfile, TargetShape, TrainedHead)

_FOLDER = Path(__file__).resolve().parent
KINDS: dict[str, type[Any]] = {
    "devices": DeviceProfile,
    "links": LinkProfile,
    "accelerators": AcceleratorProfile,
    "targets": TargetShape,
    "heads": TrainedHead,
}


def names(kind: str) -> list[str]:
    """Ids of all profiles of one of KINDS, in alphabetical order."""
    return sorted(
        {*_packaged(kind), *(path.stem for folder in _folders(kind) for path in folder.glob("*.toml"))}
    )


@cache
def _packaged(kind: str) -> Mapping[str, Any]:
    """Profiles that are rows of one packaged file, by their ids."""
    path = _FOLDER / f"{kind}.toml"
    return read_file(path) if path.is_file() else {}


def find(kind: str, typed: str) -> str:
    """The id that someone means by `typed`: case and punctuation do not count, and whole words of an id or of a name
    are enough where they fit one profile alone (`4090`, `mac-mini`, `Llama 3.1 70B`; `A10` is no A100), or a name in
    its `also`. A path to a file stays as it is. `taken_as` tells of a name that is not the profile's own.

    Raises NotFound with what is near, or all there is.
    """
    known = names(kind)
    if not typed or typed in known or user_path(typed).is_file():
        return typed
    word = bare(typed)
    ids = {bare(name): name for name in known}
    every = {bare(also): name for name in known for also in load(kind, name).also} | ids
    for said in (word, word.removesuffix("s")):  # the latter of several
        fitting = [every[said]] if said in every else [name for name in known if said in _words(kind, name)]
        if len(fitting) == 1:
            return fitting[0]
    if "/" in typed or typed.endswith(".toml"):
        raise NotFound(f"there is no file {typed}", "profile")
    near = nearest(word, ids)
    parts = set(typed.lower().replace("-", " ").split())
    alike = [name for name in known if (word and word in bare(name)) or parts & set(name.split("-"))]
    meant = fitting or ([ids[near]] if near else alike)
    hint = (
        f"did you mean {' or '.join(meant)}?" if meant else f"choose from {', '.join(known)}, or give a file"
    )
    raise NotFound(f"no profile {typed!r} among {kind}; {hint}", "profile")


def bare(text: str) -> str:
    """Letters and digits alone, in lower case."""
    return "".join(filter(str.isalnum, text.lower()))


def _words(kind: str, name: str) -> set[str]:
    """What `find` looks in: words of the id and the name of a profile that stand behind each other, joined."""
    texts = [re.findall(r"[a-z0-9]+(?:\.[a-z0-9]+)*", text.lower()) for text in (name, load(kind, name).name)]
    return {
        bare("".join(words[start:end]))
        for words in texts
        for start in range(len(words))
        for end in range(start + 1, len(words) + 1)
    }


def taken_as(kind: str, typed: str) -> str:
    """What to tell of a name that `find` took for a profile of another one; "" = it is the profile's own."""
    found = find(kind, typed)
    if found == typed or bare(found) == bare(typed):
        return ""
    return f"{typed} taken as {found} ({load(kind, found).name})"


def own_file(kind: str, name: str) -> Path | None:
    """The path of a profile of the user; None if configuration files are switched off."""
    folder = config_folder()
    return folder / "profiles" / kind / f"{name}.toml" if folder else None


def _folders(kind: str) -> list[Path]:
    """Folders of the profiles of a kind, the most important first."""
    own = own_file(kind, "any")
    return [*([own.parent] if own else []), _FOLDER / kind]


def load(kind: str, name: str) -> Any:
    """A profile of any of KINDS by its id or its file."""
    return _load(kind, name, KINDS[kind])


def device(name: str) -> DeviceProfile:
    return _load("devices", name, DeviceProfile)


def link(name: str) -> LinkProfile:
    return _load("links", name, LinkProfile)


def accelerator(name: str) -> AcceleratorProfile:
    return _load("accelerators", name, AcceleratorProfile)


def target(name: str) -> TargetShape:
    return _load("targets", name, TargetShape)


def _load(kind: str, name: str, profile: type[Profile]) -> Profile:
    found = find(kind, name)
    if not found:
        raise NotFound(f"name a profile: {kind} are {', '.join(names(kind))}, or give a file", "profile")
    files = (
        [folder / f"{found}.toml" for folder in _folders(kind)]
        if found in names(kind)
        else [user_path(found)]
    )
    path = next(filter(Path.is_file, files), None if found in _packaged(kind) else files[-1])
    table = read_file(path) if path else _packaged(kind)[found]
    return profile(id=path.stem if path else found, **_values(profile, table, f"{path or found}: "))


def _values(kind: type[Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a dataclass from a table; `where` begins every error. A `source` of the table is also that of its
    quantities that are [min, typical, max]."""
    hints, source = get_type_hints(kind), table.get("source", "")
    table = {
        name: dict(zip(KEYS, (*value, source)))
        if isinstance(value, list) and hints.get(name) is Quantity
        else value
        for name, value in table.items()
        if name != "source" or name in hints
    }
    known = [item for item in fields(kind) if item.name != "id"]
    required = {item.name for item in known if item.default is MISSING and item.default_factory is MISSING}
    _require_keys(table, {item.name for item in known}, required, where)
    return {name: _read(hints[name], value, f"{where}{name}") for name, value in table.items()}


def _require_keys(table: Mapping[str, Any], known: set[str], required: set[str], where: str) -> None:
    if unknown := set(table) - known:
        raise UsageError(f"{where}unknown key {min(unknown)!r}; keys are {', '.join(sorted(known))}")
    if missing := required - set(table):
        raise UsageError(f"{where}{min(missing)} is missing")


def _read(hint: Any, value: Any, key: str) -> Any:
    if hint in _READERS:
        return _READERS[hint](value, key)
    right = (int, float) if hint is float else hint
    if not isinstance(value, right) or (isinstance(value, bool) and hint is not bool):
        raise UsageError(f"{key}: {value!r} is not {hint.__name__}")
    return hint(value)


def _list(value: Any, key: str, of: Any = str) -> tuple[Any, ...]:
    if not isinstance(value, list) or not all(isinstance(each, of) for each in value):
        raise UsageError(f"{key}: a list of {'names' if of is str else 'numbers'} is needed")
    return tuple(value)


_numbers = partial(_list, of=(int, float))


def _rows(table: Any, key: str) -> dict[str, tuple[Curve, str]]:
    found = {}
    for name, given in _tables(table, key).items():
        where = f"{key}.{name}"
        if not re.fullmatch(r"(dense|experts) \d+(\.\d+)?", name) or set(given) != {"points", "source"}:
            raise UsageError(f'{where}: points and source are needed, under a name such as "dense 8.5"')
        points = tuple((row, factor) for row, factor in (_numbers(each, where) for each in given["points"]))
        if not points or any(low >= high or a > b for (low, a), (high, b) in pairwise(points)):
            raise UsageError(f"{where}: rows that ascend are needed, with seconds that never fall")
        found[name] = points, str(given["source"])
    return found


def _drafts(table: Any, key: str) -> dict[str, DraftSpeed]:
    return {size: _draft(size, speeds, f"{key}.{size}") for size, speeds in _tables(table, key).items()}


def _tables(table: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise UsageError(f"{key}: tables are needed, one for each name")
    return table


def _quantities(table: Any, key: str) -> dict[str, Quantity]:
    return {name: Quantity.of(value, f"{key}.{name}") for name, value in _tables(table, key).items()}


def _table_reader(kind: type[Any]) -> Callable[[Any, str], Any]:
    """A reader of tables of dataclasses by name."""

    def read(table: Any, key: str) -> dict[str, Any]:
        inner = {name: _tables(value, f"{key}.{name}") for name, value in _tables(table, key).items()}
        return {name: kind(**_values(kind, value, f"{key}.{name}.")) for name, value in inner.items()}

    return read


def _draft(size: str, table: Any, key: str) -> DraftSpeed:
    rates = ("decode_per_s", "prefill_per_s")
    if not isinstance(table, Mapping) or set(table) != set(rates):
        raise UsageError(f"{key}: exactly {' and '.join(rates)} are needed")
    return DraftSpeed(size, *(Quantity.of(table[rate], f"{key}.{rate}") for rate in rates))


_READERS: dict[Any, Callable[[Any, str], Any]] = {
    Quantity: Quantity.of,
    Quantity | None: Quantity.of,
    Mapping[str, Quantity]: _quantities,
    Mapping[str, tuple[Curve, str]]: _rows,
    tuple[str, ...]: _list,
    tuple[float, ...]: _numbers,
    Mapping[str, DraftSpeed]: _drafts,
    Mapping[str, MeasuredLink]: _table_reader(MeasuredLink),
}
