"""A systemctl, loginctl and journalctl on PATH that note what they are asked, and say what a test told them to say."""

import json
import os
from pathlib import Path

from home.service import manager, service_plan, unit_text

SCRIPT = """#!/bin/sh
case "$(basename "$0") $*" in
*Version) echo Version=252 ;;
*journalctl*) cat {folder}/journal ;;
*show*) cat {folder}/first 2>/dev/null || cat {folder}/state; rm -f {folder}/first ;;
*) echo "$(basename "$0") $*" >> {folder}/calls
    refused=$(cat {folder}/refused)
    case "$*" in *"${{refused:-nothing}}"*) echo Access denied >&2; exit 1 ;; esac ;;
esac
"""
ACTIVE = """\
ActiveState=active
SubState=running
UnitFileState=enabled
StateChangeTimestamp=@1790000000
NRestarts=0
"""


class FakeSystemd:
    """Of a user whose folders lie below `folder`."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self._folder, self._patch = folder / "systemd", monkeypatch
        self._folder.mkdir()
        for name in ("systemctl", "loginctl", "journalctl"):
            (self._folder / name).write_text(SCRIPT.format(folder=self._folder))
            (self._folder / name).chmod(0o755)
        (self._folder / "state").write_text(ACTIVE)
        self.refuses("")
        self.forget()
        self.writes()
        monkeypatch.setenv("PATH", f"{self._folder}:{os.environ['PATH']}")
        (folder / "config").mkdir()
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setattr(manager, "BOOTED", self._folder)
        monkeypatch.setattr(manager, "account", lambda: "root")
        monkeypatch.setattr(manager, "lingers", lambda: False)
        monkeypatch.setattr(manager, "SYSTEM_UNITS", folder / "system")
        monkeypatch.setattr(unit_text, "DEVICES", folder)
        self._is(system=False)

    def _is(self, system: bool) -> None:
        self._system = system
        self._patch.setattr(manager, "current", lambda: manager.Manager(system))

    def becomes_the_systems(self) -> None:
        """From now on it is root who installs, from a folder that services of the system see."""
        self._is(system=True)
        self._patch.setattr(unit_text, "HIDDEN", ())
        self._patch.setattr(service_plan, "SYSTEM_CACHE", self._folder / "cache")

    def unit(self, service: str) -> Path:
        return manager.Manager(self._system).unit(service)

    def calls(self) -> list[str]:
        """Commands that change something, in their order."""
        return (self._folder / "calls").read_text().splitlines()

    def forget(self) -> None:
        (self._folder / "calls").write_text("")

    def own(self) -> set[Path]:
        """The files of this fake."""
        return {self._folder, *self._folder.rglob("*")}

    def lingers(self) -> None:
        """Services of this user run without a login from now on."""
        self._patch.setattr(manager, "lingers", lambda: True)

    def fails(self, line: str) -> None:
        (self._folder / "state").write_text(ACTIVE.replace("=active", "=failed").replace("running", "failed"))
        self.writes(line, "opensled-serve.service: Failed with result 'exit-code'.")

    def restarts(self) -> None:
        """The next question is answered while the process of before still runs."""
        (self._folder / "first").write_text(f"{ACTIVE}Job=7\n")

    def refuses(self, part: str) -> None:
        """Commands with `part` in them fail from now on."""
        (self._folder / "refused").write_text(part)

    def retries(self, line: str) -> None:
        state = ACTIVE.replace("=active", "=activating").replace("running", "auto-restart")
        (self._folder / "state").write_text(state)
        self.writes(line)

    def writes(self, *lines: str) -> None:
        """The journal."""
        entries = [
            json.dumps({"MESSAGE": line, "PRIORITY": "6", "__REALTIME_TIMESTAMP": "1790000001000000"})
            for line in lines
        ]
        (self._folder / "journal").write_text("\n".join(entries))
