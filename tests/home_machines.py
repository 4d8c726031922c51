"""Machines of a home on one host: each has its network namespace, its name, its address and a home folder of an
ordinary user; a bridge connects them. Needs root, and `ip`, `unshare` and `setpriv`."""

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lab.testbed.namespaces import ip, namespace, require
from opensled.core.errors import OpenSledError, UsageError

ACCOUNT = pwd.getpwnam("nobody")
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
READY = re.compile(r"^listening on (\S+)$", re.M)
PATIENCE = 180.0  # seconds for a command


@dataclass
class Running:
    """A command that stays in the foreground; what it prints goes to a file."""

    process: subprocess.Popen[bytes]
    log: Path

    def await_text(self, pattern: re.Pattern[str], seconds: float = PATIENCE) -> str:
        """The first group of what matches in its output. Raises OpenSledError."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = pattern.search(self.log.read_text())
            if found:
                return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise OpenSledError(f"{self.process.args!r} printed no {pattern.pattern!r}:\n{self.log.read_text()}")

    def stop(self) -> None:
        """Ctrl-C, for it and all that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(45)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass
class HomeMachine:
    """One machine; `running`: its commands that stay in the foreground, by the verb."""

    name: str
    space: str
    address: str
    home: Path
    folder: Path  # where commands are typed
    running: dict[str, Running] = field(default_factory=dict)

    def words(self, command: str, outside: bool = False) -> list[str]:
        """The command as this machine's user types it; `outside`: with the network of the host."""
        user = f'exec setpriv --reuid {ACCOUNT.pw_uid} --regid {ACCOUNT.pw_gid} --clear-groups bash -ec "$1"'
        name = f"hostname {self.name}; {user}"
        where = [] if outside else ["ip", "netns", "exec", self.space]
        return [*where, "unshare", "--uts", "sh", "-c", name, "sh", command]

    def run(self, command: str, status: int = 0, outside: bool = False) -> str:
        """Both outputs of a command; raises OpenSledError if it does not end with `status`."""
        done = subprocess.run(
            self.words(command, outside), cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
        )  # fmt: skip
        if done.returncode != status:
            raise OpenSledError(f"{self.name}: {command}\nended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def start(self, verb: str, command: str) -> Running:
        """Start a command in place of an earlier one of that verb."""
        self.stop(verb)
        log = self.home / f"{verb}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.words(command), cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.running[verb] = Running(process, log)
        return self.running[verb]

    def stop(self, verb: str) -> None:
        if verb in self.running:
            self.running.pop(verb).stop()

    def _environment(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": PATH, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}

    def give(self, source: Path, target: Path) -> None:
        """Copy a file or folder to this machine's user."""
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        self.own(target)

    def own(self, target: Path) -> None:
        """Make a file or a folder this user's."""
        for path in (target, *target.rglob("*")):
            os.chown(path, ACCOUNT.pw_uid, ACCOUNT.pw_gid)


@contextmanager
def machines(folder: Path, places: dict[str, str]) -> Iterator[dict[str, HomeMachine]]:
    """The machines by name, at their addresses."""
    _require_tools()
    with ExitStack() as stack:
        prefix = f"home{os.getpid()}"
        switch = stack.enter_context(namespace(f"{prefix}-lan"))
        ip("-n", switch, "link", "add", "lan", "type", "bridge")
        ip("-n", switch, "link", "set", "lan", "up")
        found: dict[str, HomeMachine] = {}
        for name, address in places.items():
            space = stack.enter_context(namespace(f"{prefix}-{name}"))
            _plug(switch, space, name, address)
            home = folder / name
            home.mkdir()
            os.chown(home, ACCOUNT.pw_uid, ACCOUNT.pw_gid)
            found[name] = HomeMachine(name, space, address, home, home)
        try:
            yield found
        finally:
            for machine in reversed(found.values()):
                for verb in list(machine.running):
                    machine.stop(verb)


def _plug(switch: str, space: str, name: str, address: str) -> None:
    ip("-n", switch, "link", "add", name, "type", "veth", "peer", "name", "lan", "netns", space)
    ip("-n", switch, "link", "set", name, "master", "lan", "up")
    ip("-n", space, "address", "add", f"{address}/24", "dev", "lan")
    ip("-n", space, "link", "set", "lan", "up")


def _require_tools() -> None:
    require()
    missing = [name for name in ("unshare", "setpriv", "hostname", "curl") if not shutil.which(name)]
    if missing:
        raise UsageError(
            f"these are missing here: {', '.join(missing)} (Debian: apt-get install util-linux hostname curl)"
        )
    version = subprocess.run(
        ["python3", "-c", "import ensurepip, sys; print(*sys.version_info[:2], sep='.')"],
        env={"PATH": PATH}, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    if version != f"{sys.version_info[0]}.{sys.version_info[1]}":
        raise UsageError(
            f"the machines' python3 ({version or 'without ensurepip: apt-get install python3-venv'}) lends libraries "
            f"from .venv, so it must be Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
