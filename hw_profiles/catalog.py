"""The profiles that come with OpenSLED, one TOML file each; a path to a file of one's own works as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from hw_profiles.accelerator import AcceleratorProfile
from hw_profiles.device import DeviceProfile, DraftSpeed
from hw_profiles.link import LinkProfile
from hw_profiles.quantity import Quantity
from hw_profiles.target import TargetShape
from opensled.config import read_file
from opensled.errors import NotFound, UsageError

Profile = TypeVar("Profile", DeviceProfile, LinkProfile, AcceleratorProfile, TargetShape)

_FOLDER = Path(__file__).resolve().parent
KINDS: dict[str, type[Any]] = {
    "devices": DeviceProfile,
    "links": LinkProfile,
    "accelerators": AcceleratorProfile,
    "targets": TargetShape,
}


def names(kind: str) -> list[str]:
    """Ids of the packaged profiles of one of KINDS, in alphabetical order."""
    return sorted(path.stem for path in (_FOLDER / kind).glob("*.toml"))


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
    path = _FOLDER / kind / f"{name}.toml" if name in names(kind) else Path(name).expanduser()
    if not name or not path.is_file():
        known = ", ".join(names(kind))
        raise NotFound(f"no profile {name!r} among {kind}; choose from {known}, or give a file", "profile")
    return _build(profile, path.stem, read_file(path), path)


def _build(profile: type[Profile], id: str, table: Mapping[str, Any], path: Path) -> Profile:
    hints = get_type_hints(profile)
    known = [item for item in fields(profile) if item.name != "id"]
    required = {item.name for item in known if item.default is MISSING and item.default_factory is MISSING}
    _require_keys(table, {item.name for item in known}, required, path)
    values = {name: _read(hints[name], value, f"{path}: {name}") for name, value in table.items()}
    return profile(id=id, **values)


def _require_keys(table: Mapping[str, Any], known: set[str], required: set[str], path: Path) -> None:
    if unknown := set(table) - known:
        raise UsageError(f"{path}: unknown key {min(unknown)!r}; keys are {', '.join(sorted(known))}")
    if missing := required - set(table):
        raise UsageError(f"{path}: {min(missing)} is missing")


def _read(hint: Any, value: Any, key: str) -> Any:
    if hint in _READERS:
        return _READERS[hint](value, key)
    right = (int, float) if hint is float else hint
    if not isinstance(value, right) or (isinstance(value, bool) and hint is not bool):
        raise UsageError(f"{key}: {value!r} is not {hint.__name__}")
    return hint(value)


def _drafts(table: Any, key: str) -> dict[str, DraftSpeed]:
    if not isinstance(table, Mapping):
        raise UsageError(f"{key}: tables by draft size are needed")
    return {size: _draft(size, speeds, f"{key}.{size}") for size, speeds in table.items()}


def _draft(size: str, table: Any, key: str) -> DraftSpeed:
    rates = ("decode_per_s", "prefill_per_s")
    if not isinstance(table, Mapping) or set(table) != set(rates):
        raise UsageError(f"{key}: just {' and '.join(rates)} are needed")
    return DraftSpeed(size, *(Quantity.of(table[rate], f"{key}.{rate}") for rate in rates))


_READERS: dict[Any, Callable[[Any, str], Any]] = {
    Quantity: Quantity.of,
    Mapping[str, DraftSpeed]: _drafts,
}
