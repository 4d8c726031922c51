"""`opensled service install`, `opensled service remove` and `opensled service status`."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from home.service import manager as systemd
from home.service import unit_files
from home.service.config import SERVICES, InstallConfig, RemoveConfig, StatusConfig, known_service
from home.service.manager import Manager
from home.service.service_flags import check_flags
from home.service.service_plan import ServicePlan, Step, installation, removal
from home.service.unit_text import facts_of
from opensled.core.errors import OpenSledError, UsageError
from opensled.core.printable import visible_line
from opensled.process.logs import announce

RETRIED = "auto-restart"  # systemd's word for a service that ended with an error and is to be started again
START_SECONDS = 60.0  # for which the end of a start is awaited; systemd goes on after that
STARTS = {  # by the state in which they end
    "active": "{name} runs, and starts at every boot",
    RETRIED: "{name} is installed, and cannot start yet: {error}. systemd tries again every 5 seconds",
    "activating": "{name} is still starting; see: opensled service status",
}


def install(config: InstallConfig) -> int:
    """Write a unit and start it at every boot, or change it; returns the exit code."""
    known_service(config.service)
    manager, values = _manager(config), check_flags(config.service, config.flags)
    plan = installation(manager, config.service, values)
    _warn_of_variables(manager.command("edit", manager.unit(config.service).name))
    if config.dry_run:
        for each in plan.hindrances:
            announce(f"it would not be installed: {each}")
        return _show(plan, config.json)
    if plan.hindrances:
        raise UsageError(plan.hindrances[0])
    systemd.require()
    _run(plan.before)
    if not manager.system:
        systemd.await_user_manager()
    changed = [path for path, text in plan.files.items() if unit_files.write(path, text)]
    unit_files.delete(plan.gone)
    for path in plan.files:
        _say(f"{'wrote' if path in changed else 'unchanged:'} {path}")
    for path in plan.gone:
        _say(f"deleted {path}")
    if changed or plan.gone:
        _run(plan.after)
    else:  # answers that are under way go on
        name = manager.unit(config.service).name
        _run(Step(manager.command(*words, name)) for words in (("enable",), ("start", "--no-block")))
    if manager.system and plan.facts.secrets:
        announce(
            f"systemd hands the service copies of these files at its start: {', '.join(plan.facts.secrets)}; "
            f"after a change, also by opensled pair: systemctl restart {manager.unit(config.service).stem}"
        )
    return _report_start(manager, config, plan)


def _manager(config: InstallConfig) -> Manager:
    """Raises UsageError for --system where only root could install."""
    manager = systemd.current()
    if not config.system or manager.system:
        return manager
    if not config.dry_run:
        raise UsageError(
            "only root installs a service of the machine: run this with sudo, leave out --system, or add --dry-run"
        )
    return Manager(system=True)


def _warn_of_variables(edit: Sequence[str]) -> None:
    """systemd starts a service without the variables of this shell; `edit` is its command that adds some."""
    found = sorted(name for name in os.environ if name.startswith("OPENSLED_") and os.environ[name])
    if found:
        names = ", ".join(found)
        announce(
            f"{names} of this shell will not reach the service; give flags, or set them by: {shlex.join(edit)}"
        )


def _report_start(manager: Manager, config: InstallConfig, plan: ServicePlan) -> int:
    """Wait for the end of the start, and say how it went; returns the exit code."""
    name, state = manager.unit(config.service).name, _wait_for_state(manager, config.service)
    found = manager.last_error(config.service) if state in ("failed", RETRIED) else None
    error = found[0] if found else ""
    if config.json:
        outcome = {"state": state, "error": error or None, "page": plan.facts.page or None}
        print(json.dumps({**plan.document(), **outcome}))
    elif state != "failed":
        print(STARTS[state].format(name=name, error=error))
        if plan.facts.page:
            print(f"the page: {plan.facts.page}")
    if state == "failed":
        raise OpenSledError(
            f"{name} is installed and does not start: {error or 'its journal says nothing'}; correct the cause and "
            f"install again, or: opensled service remove {config.service}"
        )
    return 0


def _wait_for_state(manager: Manager, service: str) -> str:
    """active, failed, RETRIED, or activating after START_SECONDS."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        shown = manager.show(service)
        if not shown.get("Job"):  # while a start is queued or under way, the state may be the one before it
            if shown.get("ActiveState") in ("active", "failed"):
                return shown["ActiveState"]
            if shown.get("SubState") == RETRIED:
                return RETRIED
        time.sleep(0.2)
    return "activating"


def remove(config: RemoveConfig) -> int:
    """Stop a service and delete what its installation wrote; returns the exit code."""
    known_service(config.service)
    manager = systemd.current()
    plan = removal(manager, config.service)
    if config.dry_run:
        return _show(plan, config.json)
    systemd.require()
    _run(plan.before)
    unit_files.delete(plan.gone)
    _run(plan.after)
    kept = [path for path in plan.facts.secrets if Path(path).exists()]
    if config.json:
        print(json.dumps({**plan.document(), "kept": kept}))
        return 0
    lines = [f"deleted {path}" for path in plan.gone] + [f"credentials stay: {path}" for path in kept]
    print(*lines, sep="\n")
    return 0


def _show(plan: ServicePlan, as_json: bool) -> int:
    """A dry run: what would be done, in its order."""
    if as_json:
        print(json.dumps(plan.document()))
        return 0
    lines = [f"+ {step}" for step in plan.before]
    lines += [f"# {path}\n{unit_files.add_seal(text)}" for path, text in plan.files.items()]
    lines += [f"+ {step}" for step in (*(f"rm {path}" for path in plan.gone), *plan.after)]
    print(*lines, sep="\n")
    return 0


def _run(steps: Iterable[Step]) -> None:
    for step in steps:
        _say(f"+ {step}")
        try:
            systemd.run(step.words, step.variables)
        except OpenSledError as error:
            if not step.may_fail:
                raise OpenSledError("; ".join(filter(None, [str(error), step.remedy]))) from error


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def status(config: StatusConfig) -> int:
    """Show every service that is installed; returns the exit code."""
    managers = [systemd.current(), *([] if systemd.current().system else [Manager(system=True)])]
    found = [_state(each, name) for each in managers for name in SERVICES if each.unit(name).is_file()]
    if config.json:
        print(json.dumps(found))
    elif not found:
        folders = " or ".join(str(each.folder) for each in managers)
        print(f"no service is installed in {folders}; one for this device: opensled service install edge")
    else:
        print(*map(_lines, found), sep="\n\n")
    return 0


def _state(manager: Manager, service: str) -> dict[str, Any]:
    """One installed service; times are seconds since 1970 (UTC), None = unknown."""
    path, shown = manager.unit(service), manager.show(service)
    since, error = shown.get("StateChangeTimestamp", "")[1:], manager.last_error(service)
    return {
        "service": service,
        "of": "system" if manager.system else "user",
        "unit": str(path),
        "state": shown.get("ActiveState", "unknown"),  # as systemd spells it; unknown = it cannot be asked
        "since": float(since) if since.isdigit() else None,  # of --timestamp=unix, such as @1700000000
        "at_boot": shown.get("UnitFileState") == "enabled",
        "restarts": int(shown.get("NRestarts", "0") or 0),  # since it was started by hand
        "page": _page(path),
        "last_error": error and error[0],
        "last_error_at": error and error[1],
    }


def _page(path: Path) -> str | None:
    """From a unit that `opensled service install` wrote; None for another one."""
    try:
        return facts_of(unit_files.read_ours(path) or "").page or None
    except UsageError:
        return None


def _lines(each: dict[str, Any]) -> str:
    since = f" since {_clock(each['since'])}" if each["since"] else ""
    boot = "starts at every boot" if each["at_boot"] else "does not start at boot"
    head = f"opensled-{each['service']} ({each['of']}): {each['state']}{since}; {boot}; {each['restarts']} restarts"
    lines = [head, f"  page        {each['page']}"] if each["page"] else [head]
    if each["last_error"] and each["last_error_at"]:
        lines.append(f"  last error  {_clock(each['last_error_at'])}: {visible_line(each['last_error'])}")
    return "\n".join([*lines, f"  unit        {each['unit']}"])


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
