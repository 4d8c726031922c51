"""The text of a unit: the files of `units/`, then what depends on this machine and on the flags of the service.

systemd merges the sections of one name, so the parts stand one after the other (systemd.unit(5)).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from home.service.service_flags import Given
from opensled.core.errors import UsageError
from opensled.net.address import MDNS

UNITS = Path(__file__).parent / "units"
HIDDEN = (
    "/home",
    "/root",
    "/run/user",
    "/tmp",
    "/var/tmp",
)  # what ProtectHome= and PrivateTmp= hide from a service
DEVICES = Path("/dev")
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
_FACTS = "X-OpenSLED"  # systemd skips sections whose names begin with X-


@dataclass(frozen=True)
class Facts:
    """What `status` and `remove` need to know of a service; it stands in its unit."""

    page: str = ""  # address of the page and the API, "" = none
    lingers: bool = False  # whether the installation let services of this user run without a login
    secrets: tuple[str, ...] = ()  # files and folders with credentials, which outlive the service


def program() -> list[str]:
    """The command `opensled` of this environment, as words with an absolute path."""
    python = Path(sys.executable)
    script = python.with_name("opensled")
    return [str(script)] if script.is_file() else [str(python), "-m", "opensled"]


def quote(word: str) -> str:
    """A word of a command line in a unit, which reaches the service as it is (systemd.service(5), COMMAND LINES)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if _PLAIN.fullmatch(word) else f'"{escaped}"'


def unit(service: str, flags: Sequence[Given], facts: Facts, system: bool) -> str:
    """The unit of a service of this machine (`system`), or of this user."""
    scope = "system" if system else "user"
    parts = [(UNITS / f"{name}.conf").read_text("utf-8") for name in (service, "unit", scope)]
    return "\n".join([*parts, _command(service, flags, system), _section(facts)])


def _command(service: str, flags: Sequence[Given], system: bool) -> str:
    """[Service] with the command line; a service of the system gets secrets from systemd, which reads them as root."""
    lines, words = ["[Service]"], [quote(word) for word in (*program(), service)]
    for each in flags:
        if system and each.is_credential and each.path:
            lines.append(f"LoadCredential={each.option.name}:{_credential(each.path)}")
            words += each.words(f"${{CREDENTIALS_DIRECTORY}}/{each.option.name}")
        else:
            words += [quote(word) for word in each.words()]
    _require_startable(program()[0])
    return "\n".join([*lines, f"ExecStart={' '.join(words)}", ""])


def _credential(path: Path) -> str:
    """A path as LoadCredential= takes it: without quotes to the end of the line."""
    text = str(path)
    if "\\" in text or text != text.strip():
        raise UsageError(f"{path}: a backslash or a blank at the end cannot stand in a unit; rename the file")
    return text.replace("%", "%%")


def _require_startable(command: str) -> None:
    """systemd replaces no `$$` in the path of a program."""
    if "$" in command:
        raise UsageError(
            f"{command}: systemd starts no program whose path holds a dollar sign; install elsewhere"
        )


def hindrances(flags: Sequence[Given]) -> Iterator[str]:
    """Why a service of the system could not start: it sees no home folder."""
    named = [each.path for each in flags if each.path and not each.is_credential]
    for path in (Path(program()[0]), Path(sys.base_prefix), *named):
        if any(path.is_relative_to(folder) for folder in HIDDEN):
            yield (
                f"{path} lies where a service of the system sees nothing ({', '.join(HIDDEN)}): move it, such as to "
                "/opt/opensled (docs/install.md), or install a service of your own account, without sudo"
            )


def _section(facts: Facts) -> str:
    lines = [f"[{_FACTS}]", f"Lingers={'yes' if facts.lingers else 'no'}"]
    lines += [f"Page={facts.page}"] if facts.page else []
    return "\n".join([*lines, *(f"Secret={path}" for path in facts.secrets), ""])


def facts_of(text: str) -> Facts:
    """The facts in the text of a unit."""
    section = text.partition(f"[{_FACTS}]\n")[2]
    pairs = [line.partition("=")[::2] for line in section.splitlines()]
    found = dict(pairs)
    secrets = tuple(value for name, value in pairs if name == "Secret")
    return Facts(found.get("Page", ""), found.get("Lingers") == "yes", secrets)


def drop_ins(values: dict[str, object], system: bool) -> dict[str, str]:
    """Texts of the drop-ins that this machine and these values ask for, by name."""
    names = {}
    if any(DEVICES.glob("nv[ihm]*")):  # nvidia0, nvhost-gpu, nvmap
        names["opensled-gpu.conf"] = "gpu-system.conf" if system else "gpu-user.conf"
    asks = values.get("replicas") or values.get("ray_address") or values.get("announce")
    if system and (asks or values.get("server") == MDNS):
        names["opensled-netlink.conf"] = "netlink.conf"
    return {name: (UNITS / file).read_text("utf-8") for name, file in names.items()}
