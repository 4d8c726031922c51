"""What an installation or a removal will write, delete and run; nothing here changes anything."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from home.service import manager as systemd
from home.service.config import SERVICES
from home.service.manager import Manager
from home.service.pairing_files import folders, with_pairing
from home.service.service_flags import Given, model_names, value_of
from home.service.unit_files import read_ours
from home.service.unit_text import Facts, drop_ins, facts_of, hindrances, program, unit
from opensled.cli.child_server import clean_environment
from opensled.core.errors import NotFound

SYSTEM_CACHE = Path("/var/cache")  # CacheDirectory= of a service lies there


@dataclass(frozen=True)
class Step:
    """A command, with variables on top of the environment; it `may_fail` where there may be nothing to do."""

    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    may_fail: bool = False
    remedy: str = ""  # what to do if it fails

    def __str__(self) -> str:
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*settings, shlex.join(self.words)])


@dataclass(frozen=True)
class ServicePlan:
    """Steps `before`, then `files` to write (path -> text) and to delete (`gone`), then steps `after`."""

    files: dict[Path, str] = field(default_factory=dict)
    gone: tuple[Path, ...] = ()
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    facts: Facts = field(default_factory=Facts)
    hindrances: tuple[str, ...] = ()  # why the service could not start

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "files": {str(path): text for path, text in self.files.items()},
            "deleted": [str(path) for path in self.gone],
            "commands": [str(step) for step in (*self.before, *self.after)],
        }


def installation(manager: Manager, service: str, flags: Sequence[Given]) -> ServicePlan:
    """How to install a service, or to change an installed one. Raises UsageError for files of someone else."""
    path = manager.unit(service)
    read_ours(path)
    starts_lingering = not manager.system and not systemd.lingers()
    secrets = () if manager.system else map(str, folders(service, flags))
    flags = with_pairing(service, flags, manager.system)
    facts = Facts(
        _page(service, flags), starts_lingering or _made_linger(manager), (*secrets, *_secrets(flags))
    )
    folder = path.with_name(f"{path.name}.d")
    extra = drop_ins({each.option.name: each.value for each in flags}, manager.system)
    files = {path: unit(service, flags, facts, manager.system)}
    files |= {folder / name: text for name, text in extra.items()}
    stale = tuple(found for found in _written_drop_ins(folder) if found not in files)
    lingering = [_lingering(systemd.account())] if starts_lingering else []
    fetching = _fetching(manager, service, flags)
    commands = (("daemon-reload",), ("enable", path.name), ("restart", "--no-block", path.name))
    after = tuple(Step(manager.command(*words)) for words in commands)
    found = tuple(hindrances(flags)) if manager.system else ()
    return ServicePlan(files, stale, (*fetching, *lingering), after, facts, found)


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


def _lingering(account: str) -> Step:
    words = ("loginctl", "enable-linger", account)
    return Step(words, remedy=f"an administrator can allow it: sudo {' '.join(words)}; then install again")


def _made_linger(manager: Manager) -> bool:
    """Whether an earlier installation let services of this user run without a login."""
    texts = [
        path.read_text("utf-8", "replace") for each in SERVICES if (path := manager.unit(each)).is_file()
    ]
    return any(facts_of(text).lingers for text in texts)


def _written_drop_ins(folder: Path) -> list[Path]:
    """Drop-ins of ours; `read_ours` raises for one that someone changed."""
    return [path for path in sorted(folder.glob("opensled-*.conf")) if read_ours(path) is not None]


def _page(service: str, flags: Sequence[Given]) -> str:
    """The address at which a browser on this machine finds the page."""
    address = value_of(flags, service, "http")
    if not address:
        return ""
    host, _, port = address.rpartition(":")
    name = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}.get(host, host)
    certified = ("http_tls_cert",) if service == "edge" else ("tls_cert", "paired")
    cert = any(value_of(flags, service, name) for name in certified)
    return f"{'https' if cert else 'http'}://{name}:{port}/"


def _secrets(flags: Sequence[Given]) -> tuple[str, ...]:
    return tuple(str(each.path) for each in flags if each.is_credential and each.path)


def _fetching(manager: Manager, service: str, flags: Sequence[Given]) -> list[Step]:
    """Commands that fetch the models which the service needs and would not find."""
    folder = str(SYSTEM_CACHE / manager.unit(service).stem)
    environment = {"OPENSLED_CACHE_DIR": folder} if manager.system else {}
    missing = [name for name in model_names(flags) if not _finds(name, environment)]
    return [Step((*program(), "pull", name), environment) for name in missing]


def _finds(model: str, environment: dict[str, str]) -> bool:
    words = [*program(), "models", "path", model]
    settings = clean_environment() | environment
    return not subprocess.run(words, env=settings, capture_output=True, stdin=subprocess.DEVNULL).returncode
