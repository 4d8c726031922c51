"""`opensled service status`: the services of this user and of the machine, and what became of them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from home.service import manager as systemd
from home.service.config import SERVICES, StatusConfig
from home.service.manager import Manager
from home.service.unit_files import read_ours
from home.service.unit_text import facts_of
from opensled.core.errors import UsageError
from opensled.core.printable import visible_line


@dataclass(frozen=True)
class ServiceState:
    """One installed service."""

    service: str
    of: str  # user or system
    unit: str  # path of the unit
    state: str  # as systemd spells it: active, activating, failed, inactive; unknown = it cannot be asked
    since: float | None  # seconds since 1970 (UTC), None = unknown
    at_boot: bool  # whether it starts at every boot
    restarts: int  # since it was started by hand
    page: str | None
    last_error: str | None  # newest line of its journal that tells one
    last_error_at: float | None  # seconds since 1970 (UTC)


def status(config: StatusConfig) -> int:
    """Show every service that is installed; returns the exit code."""
    managers = [systemd.current(), *([] if systemd.current().system else [Manager(system=True)])]
    found = [_state(each, name) for each in managers for name in SERVICES if each.unit(name).is_file()]
    if config.json:
        print(json.dumps([asdict(each) for each in found]))
    elif not found:
        folders = " or ".join(str(each.folder) for each in managers)
        print(f"no service is installed in {folders}; one for this device: opensled service install edge")
    else:
        print(*map(_lines, found), sep="\n\n")
    return 0


def _state(manager: Manager, service: str) -> ServiceState:
    path, shown, error = manager.unit(service), manager.show(service), manager.last_error(service)
    return ServiceState(
        service,
        "system" if manager.system else "user",
        str(path),
        shown.get("ActiveState", "unknown"),
        _seconds(shown.get("StateChangeTimestamp", "")),
        shown.get("UnitFileState") == "enabled",
        int(shown.get("NRestarts", "0") or 0),
        _page(path) or None,
        error and error.text,
        error and error.at,
    )


def _page(path: Path) -> str:
    """From a unit that `opensled service install` wrote; "" for another one."""
    try:
        return facts_of(read_ours(path) or "").page
    except UsageError:
        return ""


def _seconds(stamp: str) -> float | None:
    """Of --timestamp=unix, such as @1700000000."""
    return float(stamp[1:]) if stamp[1:].isdigit() else None


def _lines(each: ServiceState) -> str:
    since = f" since {_clock(each.since)}" if each.since else ""
    boot = "starts at every boot" if each.at_boot else "does not start at boot"
    lines = [f"opensled-{each.service} ({each.of}): {each.state}{since}; {boot}; {each.restarts} restarts"]
    lines += [f"  page        {each.page}"] if each.page else []
    if each.last_error and each.last_error_at:
        lines.append(f"  last error  {_clock(each.last_error_at)}: {visible_line(each.last_error)}")
    return "\n".join([*lines, f"  unit        {each.unit}"])


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
