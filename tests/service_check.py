"""`make service-check`: `opensled service` under a real systemd, in a container of systemd-nspawn over the files of
this machine. As root, on Linux (Debian: apt-get install systemd-container).

First as services of the system, by root, then as those of an ordinary user: install, pair, ask, change, remove. Nothing
of this machine changes: what is written goes to memory, and is gone at the end.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.testbed.processes import exit_on_signals
from opensled.core.errors import OpenSledError, UsageError

ROOT = Path(__file__).parents[1]
OPENSLED = "/opt/opensled/bin/opensled"
PYTHON = "/usr/bin/python3"
# Of this machine, which the container need not start
NOISE = ("docker.service", "docker.socket", "containerd.service")
BOOT_SECONDS = 60.0


class Container:
    """A machine with systemd as its first process; `leader` is that process, as this machine counts."""

    def __init__(self, leader: int) -> None:
        self._leader = leader

    def run(self, command: str, user: str = "root", status: int = 0) -> str:
        """Standard output of a command in a login shell of `user`; raises OpenSledError for another exit status."""
        words = ["nsenter", "--target", str(self._leader), "--all", "su", "-", user, "-c", command]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
        if done.returncode != status:
            raise OpenSledError(
                f"{user}: {command}\nended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def await_output(self, command: str, pattern: str, user: str) -> str:
        """The first group of what matches in the output of a command, which is run until it does."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            found = re.search(pattern, self.run(f"{command} || true", user), re.M)
            if found:
                return found[1]
            time.sleep(0.3)
        raise OpenSledError(f"{user}: {command} shows no {pattern!r}: {self.run(f'{command} || true', user)}")


@contextmanager
def container() -> Iterator[Container]:
    """A booted one, with OpenSLED in /opt and an ordinary user called pi."""
    with tempfile.TemporaryDirectory(prefix="opensled-nspawn-") as name:
        memory, root = Path(name, "memory"), Path(name, "root")
        memory.mkdir(), root.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", memory], check=True)
        try:
            with _booted(memory, root) as machine:
                machine.run("ip link set lo up && useradd --create-home --shell /bin/bash pi")
                _install(machine)
                yield machine
        finally:
            subprocess.run(["umount", "--lazy", root], check=False, capture_output=True)
            subprocess.run(["umount", memory], check=False)


@contextmanager
def _booted(memory: Path, root: Path) -> Iterator[Container]:
    upper, work = memory / "upper", memory / "work"
    units = upper / "etc/systemd/system"
    units.mkdir(parents=True), work.mkdir()
    for unit in NOISE:
        (units / unit).symlink_to("/dev/null")
    layers = f"lowerdir=/,upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True)
    words = [
        "systemd-nspawn",
        "--register=no",
        "--keep-unit",
        "--boot",
        "--private-network",
        f"--directory={root}",
    ]
    unified = Path("/sys/fs/cgroup/cgroup.procs").exists()  # control groups of version 2 only
    with (memory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*words, f"--machine=osled{os.getpid()}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": str(int(unified))},
            start_new_session=True,
        )  # fmt: skip
    try:
        yield Container(_leader(process, memory / "log"))
    finally:
        process.terminate()  # nspawn shuts the machine down
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _leader(process: subprocess.Popen[bytes], log: Path) -> int:
    """The first process of the machine, once that has booted."""
    deadline = time.monotonic() + BOOT_SECONDS
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while time.monotonic() < deadline and process.poll() is None:
        for pid in children.read_text().split():
            words = ["nsenter", "--target", pid, "--all", "systemctl", "is-system-running"]
            if subprocess.run(words, capture_output=True, text=True).stdout.strip() in (
                "running",
                "degraded",
            ):
                return int(pid)
        time.sleep(0.3)
    raise OpenSledError(f"no systemd came up in a container:\n{log.read_text(errors='replace')[-2000:]}")


def _install(machine: Container) -> None:
    """OpenSLED of this checkout in /opt, where services of the system see it."""
    libraries = next((ROOT / ".venv/lib").glob("python3*/site-packages"))
    machine.run(f"{PYTHON} -m venv --without-pip /opt/opensled")
    machine.run(
        f"printf '%s\\n' {libraries} {ROOT} > $(echo /opt/opensled/lib/python3*/site-packages)/lent.pth"
    )
    script = (
        "#!/opt/opensled/bin/python\\nimport sys\\nfrom opensled.cli.main import main\\nsys.exit(main())\\n"
    )
    machine.run(f"printf '{script}' > {OPENSLED} && chmod 755 {OPENSLED}")


def walk(machine: Container, user: str) -> None:
    """Everything, by one user."""
    said = machine.run(f"{OPENSLED} service install edge", user)
    expect("cannot start yet" in said, "a device without its server waits", said)
    pair(machine, user)
    serve = f"{OPENSLED} service install serve -- --paired --model tiny --listen 127.0.0.1:7411"
    expect("runs, and starts at every boot" in machine.run(serve, user), "a paired server runs", user)
    machine.run(f"{OPENSLED} service install edge -- --device-name 'Kü che $HOME %n \"x\" ; \\back'", user)
    state = states(machine, user)
    expect(
        {name: each["state"] for name, each in state.items()} == {"serve": "active", "edge": "active"},
        "both run",
        state,
    )
    answer = machine.run(f"{OPENSLED} generate 'Turn on the kitchen light.'", user)
    expect(bool(answer.strip()), "a question is answered", answer)
    words = machine.run(
        f"tr '\\0' '\\n' < /proc/$({scope(user)} show --property MainPID --value opensled-edge)/cmdline", user
    )
    expect('Kü che $HOME %n "x" ; \\back' in words, "flags reach the device as they are", words)
    before = states(machine, user)["serve"]["since"]
    machine.run(serve, user)
    expect(
        states(machine, user)["serve"]["since"] == before, "a repeated installation restarts nothing", before
    )
    refused = f"{OPENSLED} service install serve -- --model tiny --listen 0.0.0.0:7411"
    machine.run(refused, user, status=1)
    error = states(machine, user)["serve"]["last_error"]
    expect("reachable by other machines" in error, "a server that cannot start tells why", error)
    for service in ("edge", "serve"):
        machine.run(f"{OPENSLED} service remove {service}", user)
    left = machine.run("find / -xdev -name 'opensled-*' -path '*systemd*' 2>/dev/null || true")
    expect(not left.strip(), "nothing is left of the units", left)
    expect(not machine.run("ls /var/lib/systemd/linger 2>/dev/null || true").strip(), "nobody lingers", user)


def pair(machine: Container, user: str) -> None:
    machine.run(f"(timeout 120 {OPENSLED} pair --listen 127.0.0.1:7412 > ~/pair.log 2>&1 &)", user)
    code = machine.await_output("cat ~/pair.log", r"pairing code (\S+),", user)
    machine.run(
        f"timeout 20 {OPENSLED} edge --pair {code} 127.0.0.1 --http 127.0.0.1:0 > ~/edge.log 2>&1 || true",
        user,
    )
    expect("paired with 127.0.0.1:7411" in machine.run("cat ~/edge.log", user), "the device is paired", user)


def scope(user: str) -> str:
    return "systemctl" if user == "root" else "XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user"


def states(machine: Container, user: str) -> dict[str, dict[str, str]]:
    return {
        each["service"]: each for each in json.loads(machine.run(f"{OPENSLED} service status --json", user))
    }


def expect(right: bool, what: str, seen: object) -> None:
    if not right:
        raise OpenSledError(f"not so: {what}; seen: {seen}")
    print(f"  {what}", flush=True)


def main() -> int:
    """The whole check; returns the exit code."""
    exit_on_signals()
    try:
        if os.geteuid() or not shutil.which("systemd-nspawn"):
            raise UsageError("this needs root and systemd-nspawn (Debian: apt-get install systemd-container)")
        if ROOT.is_relative_to("/tmp"):
            raise UsageError(
                f"{ROOT} cannot be seen from a container, which has a /tmp of its own; move the checkout"
            )
        with container() as machine:
            for user in ("root", "pi"):
                started = time.monotonic()
                print(f"services of {'the system' if user == 'root' else 'an ordinary user'}", flush=True)
                walk(machine, user)
                print(f"  in {time.monotonic() - started:.0f} s", flush=True)
    except (OpenSledError, subprocess.SubprocessError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
