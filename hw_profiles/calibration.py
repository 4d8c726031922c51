"""The profile of this very machine, which `opensled profile calibrate` writes."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hw_profiles import catalog
from hw_profiles.detect import Board, detect
from hw_profiles.profiles import DeviceProfile, DraftSpeed, Quantity
from opensled.core.errors import UsageError
from opensled.core.files import write_whole

THIS_MACHINE = "this-machine"  # its id among the devices
UNKNOWN = "not measured: this machine has no sensor for it"
HEADER = """\
# Written by `opensled profile calibrate`; run it again when this machine or its draft model changes.
# min and max span the repetitions; a wide span shows other work on the machine.
"""


def own_profile() -> DeviceProfile | None:
    """What was measured on this machine; None if nothing was, or the file is another machine's.

    A home folder may be shared: the file counts on the machine with the name and cores in it. Raises UsageError for a
    file that cannot be read.
    """
    path = catalog.own_file("devices", THIS_MACHINE)
    if path is None or not path.is_file():
        return None
    profile, board = catalog.device(THIS_MACHINE), detect()
    return profile if (profile.name, profile.cores) == (board.name, board.cores) else None


def size_of(model: str) -> str:
    """The size that a model's name tells, such as 0.5b, as packaged profiles name theirs; else the name itself."""
    name = Path(model).name.lower()
    told = re.search(r"(?<![\d.a-z])(\d+(?:\.\d+)?[bm])(?![a-z\d])", name)
    return told[1] if told else name.removesuffix(".gguf")


def baseline(board: Board) -> DeviceProfile:
    """What is known before anything is measured: the last calibration, else the packaged profile of the board.

    A calibration that cannot be read is ignored: a new one replaces it. Of a machine without any profile only its own
    description is known.
    """
    with contextlib.suppress(UsageError):
        before = own_profile()
        if before is not None:
            return before
    if board.profile:
        return replace(
            catalog.device(board.profile), name=board.name, cores=board.cores, memory_gib=board.memory_gib
        )
    unknown = Quantity(0.0, 0.0, 0.0, UNKNOWN)
    return DeviceProfile(
        THIS_MACHINE, board.name, board.cores, board.memory_gib, unknown, idle_w=unknown, busy_w=unknown
    )


def write(profile: DeviceProfile, path: Path) -> None:
    """Keep a profile as TOML, readable for `catalog`. A reader sees the old file or the new one."""
    write_whole(path, (HEADER + "\n".join(toml(profile)) + "\n").encode())


def toml(profile: DeviceProfile) -> Iterator[str]:
    """The lines of a device profile: plain values first, then a table for each draft, measurement and server."""
    for item in fields(profile):
        value = getattr(profile, item.name)
        if item.name != "id" and value is not None and not isinstance(value, Mapping):
            yield f"{item.name} = {_value(value)}"
    for kind in ("drafts", "servers"):
        for name, entry in getattr(profile, kind).items():
            yield f"\n[{kind}.{json.dumps(name)}]"
            yield from (f"{key} = {_value(value)}" for key, value in _entries(entry))


def _entries(entry: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of one table; a draft's size is its name already."""
    skipped = {"size"} if isinstance(entry, DraftSpeed) else set()
    return ((item.name, getattr(entry, item.name)) for item in fields(entry) if item.name not in skipped)


def _value(value: Any) -> str:
    """A TOML value. A JSON string is a TOML string as well, as long as nothing is escaped in JSON's way."""
    if isinstance(value, Quantity):
        numbers = (value.min, value.typical, value.max)
        low, typical, high = (f"{number:.0f}" if number >= 1000 else f"{number:.4g}" for number in numbers)
        return f"{{ min = {low}, typical = {typical}, max = {high}, source = {_value(value.source)} }}"
    return json.dumps(value, ensure_ascii=False)
