"""`make home-check`: docs/home.md typed on a PC and two Pis in network namespaces, by ordinary users, with the seconds
of each step. As root, on Linux.

What cannot be typed here is in NOT_HERE, with what is done instead. A command that no rule knows ends the check.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from lab.testbed.processes import exit_on_signals
from opensled.core.errors import OpenSledError
from opensled.models.store import fetched_folder, is_here
from tests.home_machines import READY, HomeMachine, machines
from tests.home_page import PAGE, PageCommand, commands

ROOT = Path(__file__).parents[1]
# The addresses of the page
PLACES = {"pc": "192.168.1.20", "kitchen": "192.168.1.31", "hall": "192.168.1.32"}
MODEL = "smollm2"
BACK_SECONDS = 30.0  # in which a Pi must have found a PC that woke up; chosen: several of its looks
CODE = re.compile(r"opensled edge --pair (\S+) ")
NOT_HERE = {
    "./deploy/edge": "typed outside of the namespace: what builds a wheel comes from the package index",
    "sudo apt-get": "needs root and the internet: simulated (apt-get --simulate)",
    "scp": "there is no SSH between the namespaces: copied",
    "systemctl": "there is no systemd in a namespace: the service is stopped and started",
    "service install": "there is no systemd in a namespace: a dry run, then the command line of the unit it prints",
    "service remove": "no service is installed in a namespace: says so",
    "pip install": "typed outside of the namespace; what .venv has of the libraries is lent",
}
# (walk, machine, command, its words behind `opensled`) -> what to say of it
Rule = Callable[["Walk", HomeMachine, str, list[str]], str]


class Walk:
    """The page, from its top to its end."""

    def __init__(self, found: dict[str, HomeMachine], model: str) -> None:
        self._pc, *self._pis = found.values()
        self._model = model
        self._codes: list[str] = []  # shown, and not yet typed
        self._withdrawn: list[HomeMachine] = []

    def all(self) -> None:
        text = PAGE.read_text().replace(MODEL, self._model) if self._model != MODEL else PAGE.read_text()
        for command in commands(text):
            for machine in [self._pc] if command.machine == "pc" else self._pis:
                self._timed(machine, command)
        self._timed_call("pi", "an answer while the PC sleeps, and after it woke up", self._sleep)

    def _timed(self, machine: HomeMachine, command: PageCommand) -> None:
        title = command.text.strip().splitlines()[0]
        self._timed_call(machine.name, title, lambda: self._type(machine, command))

    def _timed_call(self, where: str, title: str, call: Callable[[], str]) -> None:
        started = time.monotonic()
        said = call()
        print(f"{time.monotonic() - started:6.1f} s  {where:8} {title[:100]}", flush=True)
        if said:
            print(f"{'':19}{said}", flush=True)

    def _type(self, machine: HomeMachine, command: PageCommand) -> str:
        """Type one command; returns what to say of it."""
        if command.language == "python":
            machine.run(f"~/opensled/bin/python -c {shlex.quote(command.text)}")
            return ""
        rule = self.rule_of(command)
        if rule is None:
            raise OpenSledError(f"no rule knows how to check: {command.text}")
        return rule(self, machine, command.text, command.opensled)

    @classmethod
    def rule_of(cls, command: PageCommand) -> Rule | None:
        """What types this command of a shell; None if nothing knows how."""
        line = " ".join(command.opensled) or command.text
        return next((rule for start, rule in cls._rules.items() if line.startswith(start)), None)

    def _plain(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        machine.run(text)
        return ""

    def _wheel(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        machine.run(f"{text} --quiet", outside=True)
        return NOT_HERE["./deploy/edge"]

    def _apt(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        if not shutil.which("apt-get"):
            return f"{NOT_HERE['sudo apt-get']}; not even that, there is no apt-get here"
        subprocess.run(["apt-get", "--simulate", *text.split()[2:]], check=True, stdout=subprocess.DEVNULL)
        return NOT_HERE["sudo apt-get"]

    def _venv(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        machine.run(text)
        libraries = next((ROOT / ".venv/lib").glob("python3*/site-packages"))
        [own] = (machine.home / "opensled/lib").glob("python3*/site-packages")
        (own / "lent.pth").write_text(f"{libraries}\n")
        return ""

    def _pip(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        machine.run(f"{text} --quiet", outside=True)
        place = machine.run("~/opensled/bin/python -P -c 'import opensled; print(opensled.__file__)'")
        if not Path(place.strip()).is_relative_to(machine.home):
            raise OpenSledError(f"{machine.name} has OpenSLED of {place}, not of the wheel")
        return NOT_HERE["pip install"]

    def _scp(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        _, source, target = text.split()
        address = target.removeprefix("pi@").removesuffix(":")
        [pi] = [each for each in self._pis if each.address == address]
        pi.give(machine.folder / source, pi.home / Path(source).name)
        return NOT_HERE["scp"]

    def _serve(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        machine.start("serve", text).await_text(READY)
        return ""

    def _pair(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        self._codes.append(machine.start("pair", text).await_text(CODE))
        return f"code {self._codes[-1]}"

    def _paired_edge(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        if not self._codes:  # "repeat with a new code"
            self._pair(self._pc, "~/opensled/bin/opensled pair", [])
        machine.start("edge", text.replace("CODE", self._codes.pop())).await_text(READY)
        told = self._pc.running["pair"].await_text(re.compile(r"^paired (\S+)", re.M))
        if told != machine.name:
            raise OpenSledError(f"{machine.name} was paired as {told}")
        return ""

    def _install(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        own, dashes, flags = text.partition(" -- ")
        plan = json.loads(machine.run(f"{own} --dry-run --json{dashes}{flags} 2>/dev/null"))
        [unit] = plan["files"].values()
        line = unit.rpartition("ExecStart=")[2].splitlines()[0]
        machine.start(words[2], line).await_text(READY)
        return NOT_HERE["service install"]

    def _remove(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        [withdrawn] = self._withdrawn
        withdrawn.run(text, status=3)
        withdrawn.stop(words[2])
        return NOT_HERE["service remove"]

    def _restart(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        verb = text.rpartition("opensled-")[2]
        [line] = _command_lines(machine.running[verb])
        machine.start(verb, line).await_text(READY)
        return NOT_HERE["systemctl"]

    def _generate(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        return machine.run(f"{text} 2>/dev/null").strip().splitlines()[0][:90]

    def _revoke(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        """The second Pi is withdrawn, and hears so; the first one still answers."""
        gone = self._pis[-1]
        machine.run(text.replace("NAME", gone.name))
        gone.run('~/opensled/bin/opensled generate "Hello"', status=4)
        self._pis.remove(gone)
        self._withdrawn.append(gone)
        self._pis[0].run('~/opensled/bin/opensled generate "Hello"')
        return f"{gone.name} is refused from now on"

    def _kiosk(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        machine.run(text)
        entry = (machine.home / ".config/autostart/kitchen.desktop").read_text()
        program, *flags = entry.rpartition("Exec=")[2].split()
        if not shutil.which(program, path="/usr/bin"):
            return f"there is no {program} here: the page was not opened"
        headless = [program, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", flags[-1]]
        shown = machine.run(f"{shlex.join(headless)} 2>/dev/null")
        title = re.search(r"<title>(.*?)</title>", shown)
        if not title or "OpenSLED" not in title[1]:
            raise OpenSledError(f"{machine.name} shows no page of OpenSLED: {shown[:300]}")
        return f"Chromium shows {title[1]!r}"

    def _curl(self, machine: HomeMachine, text: str, words: list[str]) -> str:
        models = [each["id"] for each in json.loads(machine.run(f"{text} 2>/dev/null"))["data"]]
        if models != [self._model]:
            raise OpenSledError(f"the phone's call brings {models}")
        return ""

    def _sleep(self) -> str:
        """The PC's server goes while a Pi may answer alone, and comes back."""
        pi = self._pis[0]
        [server] = _command_lines(self._pc.running["serve"])
        [edge] = _command_lines(pi.running["edge"])
        pi.start("edge", f"{edge} --offline local-only").await_text(READY)
        ask = "curl -s http://127.0.0.1:8411/v1/chat/completions -H 'Content-Type: application/json' -d '%s'"
        body = json.dumps(
            {"model": self._model, "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}
        )

        def rule() -> str:
            return str(json.loads(pi.run(ask % body))["usage"]["opensled"]["rule"])

        before = rule()
        self._pc.stop("serve")
        meanwhile = rule()
        if [before, meanwhile] != ["match", "local-only"]:
            raise OpenSledError(
                f"the rules of the answers before and after the PC slept: {before}, {meanwhile}"
            )
        self._serve(self._pc, server, [])
        woke = time.monotonic()
        while rule() != "match":  # the Pi looks for the PC every few seconds
            if time.monotonic() > woke + BACK_SECONDS:
                raise OpenSledError(f"{BACK_SECONDS} s after the PC woke up the Pi still answers alone")
            time.sleep(0.2)
        took = time.monotonic() - woke
        return f"the target, the draft model alone, and {took:.1f} s after the PC woke up the target again"

    # The beginning of a command, without the path of opensled -> what types it
    _rules: ClassVar[dict[str, Rule]] = {
        "~/opensled/bin/pip wheel": _wheel,
        "sudo apt-get install": _apt,
        "python3 -m venv": _venv,
        "~/opensled/bin/pip install": _pip,
        "scp": _scp,
        "systemctl --user restart": _restart,
        "mkdir": _plain,
        "printf": _kiosk,
        "python3 -c": _plain,
        "curl": _curl,
        "pull": _plain,
        "serve": _serve,
        "pair list": _plain,
        "pair revoke": _revoke,
        "pair": _pair,
        "edge --pair": _paired_edge,
        "service install": _install,
        "service status": _plain,
        "service remove": _remove,
        "doctor": _plain,
        "generate": _generate,
    }


def _command_lines(*running: object) -> list[str]:
    return [each.process.args[-1] for each in running]  # type: ignore[attr-defined]


def main() -> int:
    """Type the page; returns the exit code."""
    os.umask(0o022)
    exit_on_signals()  # so that no process outlives the check
    started = time.monotonic()
    model = MODEL if is_here(MODEL) else "tiny"
    print(
        f"the model is {model}"
        + ("" if model == MODEL else f", for {MODEL} is not here: opensled pull {MODEL}")
    )
    try:
        with tempfile.TemporaryDirectory(prefix="opensled-home-") as name:
            Path(name).chmod(0o755)
            with machines(Path(name), PLACES) as found:
                _check_out(found["pc"])
                _lend_models(found, model)
                Walk(found, model).all()
    except (OpenSledError, subprocess.SubprocessError) as error:
        print(f"\nnot as the page says: {error}", file=sys.stderr)
        return 1
    print(f"{time.monotonic() - started:6.1f} s  in all; {len(PAGE.read_text().split())} words")
    return 0


def _check_out(machine: HomeMachine) -> None:
    """The sources as they are here, for this machine's user; his commands are typed there."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    machine.folder = machine.home / "checkout"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (machine.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, machine.folder / name)
    machine.own(machine.folder)


def _lend_models(found: dict[str, HomeMachine], model: str) -> None:
    """What `opensled pull` would fetch: there is no index in the namespaces."""
    for machine in found.values():
        cache = machine.home / ".cache/opensled/models"
        machine.run(f"mkdir -p {cache}")
        for name in (model, f"{model}-draft"):
            if model == MODEL and fetched_folder(name).is_dir():
                machine.give(fetched_folder(name), cache / name)


if __name__ == "__main__":
    sys.exit(main())
