"""The service manager: systemd of the machine, or of one user."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opensled.core.errors import OpenSledError, UsageError
from opensled.core.files import user_path

BOOTED = Path("/run/systemd/system")  # there while systemd is the first process (sd_booted(3))
SYSTEM_UNITS = Path("/etc/systemd/system")
PROPERTIES = "ActiveState,SubState,Job,UnitFileState,StateChangeTimestamp,NRestarts"
LINES = 400  # of the journal that are searched for an error
PATIENCE = 30.0  # seconds for one command of systemd
LoggedError = tuple[str, float]  # a line of a journal, and its time in seconds since 1970 (UTC)


@dataclass(frozen=True)
class Manager:
    """`system`: that of the machine, else that of this user."""

    system: bool

    @property
    def folder(self) -> Path:
        """Where its units lie."""
        if self.system:
            return SYSTEM_UNITS
        return Path(os.environ.get("XDG_CONFIG_HOME") or user_path("~/.config")) / "systemd/user"

    def unit(self, service: str) -> Path:
        """The file of a service's unit."""
        return self.folder / f"opensled-{service}.service"

    def command(self, *words: str) -> tuple[str, ...]:
        """A command for it."""
        return ("systemctl", *(() if self.system else ("--user",)), *words)

    def show(self, service: str) -> dict[str, str]:
        """PROPERTIES of a service; {} where it cannot be asked."""
        words = self.command("show", "--timestamp=unix", f"--property={PROPERTIES}", self.unit(service).name)
        return dict(line.partition("=")[::2] for line in _output(words).splitlines())

    def last_error(self, service: str) -> LoggedError | None:
        """The newest line of a service's journal that tells an error; None without one, or if it may not be read."""
        words = ["journalctl", "--system" if self.system else "--user", f"--unit={self.unit(service).name}"]
        words += f"--lines={LINES} --output=json --output-fields=MESSAGE,PRIORITY --no-pager --quiet".split()
        errors = list(filter(None, map(_error, reversed(_output(words).splitlines()))))
        causes = (each for each in errors if not _CONSEQUENCE.search(each[0]))
        return next(causes, errors[0] if errors else None)


# What systemd adds after the line that tells the cause.
_CONSEQUENCE = re.compile(r"\.service: (Main process exited|Failed with result)|^Failed to start ")


def current() -> Manager:
    """The manager for services that this user installs: root's are those of the machine."""
    return Manager(system=os.geteuid() == 0)


def require() -> None:
    """Raises UsageError where no systemd runs."""
    if not BOOTED.is_dir() or not shutil.which("systemctl"):
        raise UsageError(
            "systemd does not run here, as in most containers and on macOS; --dry-run prints the unit and the commands "
            "for a machine on which it does, and `opensled serve` or `opensled edge` run without a service"
        )


def run(words: Sequence[str], variables: Iterable[str] = ()) -> None:
    """Run a command, with variables (NAME=VALUE) of its own; raises OpenSledError with what it complains of."""
    try:
        done = _call(words, variables)
    except FileNotFoundError as error:
        raise OpenSledError(f"there is no {words[0]} here") from error
    if done.returncode:
        raise OpenSledError(f"{shlex.join(words)} failed: {done.stderr.strip() or done.stdout.strip()}")


def _output(words: Sequence[str]) -> str:
    """What a question prints; "" if it fails."""
    try:
        done = _call(words, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def _call(
    words: Sequence[str], variables: Iterable[str] = (), timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """With the folder by which a user's manager is found, which a shell after `su` lacks."""
    base = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", "LC_ALL": "C.UTF-8"}
    settings = {**base, **os.environ, **dict(each.split("=", 1) for each in variables)}
    return subprocess.run(
        words, env=settings, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
    )


def lingers() -> bool:
    """Whether services of this user run without a login."""
    return (Path("/var/lib/systemd/linger") / account()).exists()


def account() -> str:
    """The name of this user; the number of one without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def await_user_manager(seconds: float = PATIENCE) -> None:
    """Wait until systemd has started the manager of this user, who may linger now. Raises OpenSledError."""
    deadline = time.monotonic() + seconds
    while not _output(["systemctl", "--user", "show", "--property=Version"]):
        if time.monotonic() > deadline:
            raise OpenSledError(f"systemd started no manager for {account()}; log in again, and retry")
        time.sleep(0.2)


def _error(line: str) -> LoggedError | None:
    """What an entry of the journal tells, if that is an error."""
    try:
        entry = json.loads(line)
        message, at = str(entry["MESSAGE"]), int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        fails = int(entry.get("PRIORITY", 6)) <= 3 or message.startswith(("error: ", "ERROR ", "CRITICAL "))
        if message.startswith("{"):  # a log line in JSON (opensled/process/logs.py)
            record = json.loads(message)
            message, fails = str(record["message"]), record["level"] in ("error", "critical")
    except (ValueError, KeyError, TypeError):
        return None
    return (message.removeprefix("error: "), at) if fails and message else None
