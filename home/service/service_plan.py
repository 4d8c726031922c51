"""What an installation or a removal will write, delete and run; nothing here changes anything."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from home.service import manager as systemd
from home.service.config import SERVICES
from home.service.manager import Manager
from home.service.service_flags import Values, model_names, named_paths, pairing_folders, with_pairing
from home.service.unit_files import read_ours
from home.service.unit_text import Facts, drop_ins, facts_of, hindrances, program, unit
from opensled.cli.child_server import clean_environment
from opensled.cli.config import options
from opensled.cli.main import CONFIGS
from opensled.core.errors import NotFound

SYSTEM_CACHE = Path("/var/cache")  # CacheDirectory= of a service lies there


class Step(NamedTuple):
    """A command, with variables (NAME=VALUE) of its own; it `may_fail` where there may be nothing to do."""

    words: tuple[str, ...]
    variables: tuple[str, ...] = ()
    may_fail: bool = False
    remedy: str = ""  # what to do if it fails

    def __str__(self) -> str:
        return shlex.join((*self.variables, *self.words))


class ServicePlan(NamedTuple):
    """Steps `before`, then `files` to write (path -> text) and to delete (`gone`), then steps `after`."""

    files: dict[Path, str]
    gone: tuple[Path, ...]
    before: tuple[Step, ...]
    after: tuple[Step, ...]
    facts: Facts
    hindrances: tuple[str, ...] = ()  # why the service could not start

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "files": {str(path): text for path, text in self.files.items()},
            "deleted": [str(path) for path in self.gone],
            "commands": [str(step) for step in (*self.before, *self.after)],
        }


def installation(manager: Manager, service: str, values: Values) -> ServicePlan:
    """How to install a service, or to change an installed one. Raises UsageError for files of someone else."""
    path = manager.unit(service)
    read_ours(path)
    lingers = manager.system or systemd.lingers()
    folders = [] if manager.system else pairing_folders(service, values)
    values = with_pairing(service, values) if manager.system else values
    secrets = (*folders, *named_paths(service, values, credentials=True))
    facts = Facts(_page(service, values), not lingers or _made_linger(manager), tuple(map(str, secrets)))
    folder = path.with_name(f"{path.name}.d")
    files = {path: unit(service, values, facts, manager.system)}
    files |= {folder / name: text for name, text in drop_ins(values, manager.system).items()}
    stale = tuple(found for found in _written_drop_ins(folder) if found not in files)
    before = [*_fetching(manager, service, values)]
    if not lingers:
        words = ("loginctl", "enable-linger", systemd.account())
        before.append(
            Step(words, remedy=f"an administrator can allow it: sudo {' '.join(words)}; then install again")
        )
    commands = (("daemon-reload",), ("enable", path.name), ("restart", "--no-block", path.name))
    after = tuple(Step(manager.command(*words)) for words in commands)
    found = tuple(hindrances(service, values)) if manager.system else ()
    return ServicePlan(files, stale, tuple(before), after, facts, found)


def removal(manager: Manager, service: str) -> ServicePlan:
    """How to remove a service. Raises NotFound, or UsageError for files of someone else."""
    path = manager.unit(service)
    text = read_ours(path)
    if text is None:
        raise NotFound(
            f"{path} does not exist: no service {service!r} is installed here (see: opensled service status)"
        )
    facts = facts_of(text)
    before = [Step(manager.command("disable", "--now", path.name))]
    if manager.system:  # systemd cleans nothing of a failed service, and resets no other
        before.append(Step(manager.command("reset-failed", path.name), may_fail=True))
        before.append(Step(manager.command("clean", "--what=cache", path.name)))
    after = [Step(manager.command("daemon-reload"))]
    others = [each for each in SERVICES if each != service and manager.unit(each).exists()]
    if facts.lingers and not others:
        after.append(Step(("loginctl", "disable-linger", systemd.account())))
    gone = (path, *_written_drop_ins(path.with_name(f"{path.name}.d")))
    return ServicePlan({}, gone, tuple(before), tuple(after), facts)


def _made_linger(manager: Manager) -> bool:
    """Whether an earlier installation let services of this user run without a login."""
    units = filter(Path.is_file, map(manager.unit, SERVICES))
    return any(facts_of(path.read_text("utf-8", "replace")).lingers for path in units)


def _written_drop_ins(folder: Path) -> list[Path]:
    """Drop-ins of ours; `read_ours` raises for one that someone changed."""
    return [path for path in sorted(folder.glob("opensled-*.conf")) if read_ours(path) is not None]


def _page(service: str, values: Values) -> str:
    """The address at which a browser on this machine finds the page."""
    defaults = {item.name: item.default for item in options(CONFIGS.get(service))}
    if not (address := (defaults | values).get("http")):  # a relay has none
        return ""
    host, _, port = address.rpartition(":")
    name = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}.get(host, host)
    certified = ("http_tls_cert",) if service == "edge" else ("tls_cert", "paired")
    return f"{'https' if any(map(values.get, certified)) else 'http'}://{name}:{port}/"


def _fetching(manager: Manager, service: str, values: Values) -> Iterator[Step]:
    """Commands that fetch the models which the service needs and would not find."""
    cache = {"OPENSLED_CACHE_DIR": str(SYSTEM_CACHE / manager.unit(service).stem)} if manager.system else {}
    for name in model_names(service, values):
        words = [*program(), "models", "path", name]
        finding = subprocess.run(
            words, env=clean_environment() | cache, capture_output=True, stdin=subprocess.DEVNULL
        )
        if finding.returncode:
            yield Step((*program(), "pull", name), tuple(map("=".join, cache.items())))
