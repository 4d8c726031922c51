"""The text of a unit: the files of `units/`, then what depends on this machine and on the flags of the service.

systemd merges the sections of one name, so the parts stand one after the other (systemd.unit(5)).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from home.service.service_flags import Values, is_credential, named_paths, option_of
from opensled.cli.config import Option
from opensled.core.errors import UsageError
from opensled.net.address import MDNS

UNITS = Path(__file__).parent / "units"
# What ProtectHome= and PrivateTmp= hide from a service
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
DEVICES = Path("/dev")
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
_FACTS = "X-OpenSLED"  # systemd skips sections whose names begin with X-


class Facts(NamedTuple):
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


def unit(service: str, values: Values, facts: Facts, system: bool) -> str:
    """The unit of a service of this machine (`system`), or of this user."""
    scope = "system" if system else "user"
    parts = [(UNITS / f"{name}.conf").read_text("utf-8") for name in (service, "unit", scope)]
    return "\n".join([*parts, _command(service, values, system), _section(facts)])


def _command(service: str, values: Values, system: bool) -> str:
    """[Service] with the command line; a service of the system gets secrets from systemd, which reads them as root."""
    lines, words = ["[Service]"], [quote(word) for word in (*program(), service)]
    if "$" in program()[0]:  # systemd replaces no `$$` in the path of a program
        raise UsageError(
            f"{program()[0]}: systemd starts no program whose path holds a dollar sign; install elsewhere"
        )
    for name, value in values.items():
        item = option_of(service, name)
        if system and is_credential(item, value):
            lines.append(f"LoadCredential={name}:{_credential(value)}")
            words += _flag_words(item, f"${{CREDENTIALS_DIRECTORY}}/{name}")
        else:
            words += map(quote, _flag_words(item, value))
    return "\n".join([*lines, f"ExecStart={' '.join(words)}", ""])


def _flag_words(item: Option, value: Any) -> list[str]:
    """An option with its value as words of a command line."""
    if item.kind is bool:
        return [item.flags[0 if value else 1]]
    text = str(value)
    return [f"{item.flag}={text}"] if text.startswith("-") else [item.flag, text]


def _credential(path: str) -> str:
    """A path as LoadCredential= takes it: without quotes to the end of the line."""
    if "\\" in path or path != path.strip():
        raise UsageError(f"{path}: a backslash or a blank at the end cannot stand in a unit; rename the file")
    return path.replace("%", "%%")


def hindrances(service: str, values: Values) -> Iterator[str]:
    """Why a service of the system could not start: it sees no home folder."""
    named = named_paths(service, values, credentials=False)
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


def drop_ins(values: Values, system: bool) -> dict[str, str]:
    """Texts of the drop-ins that this machine and these values ask for, by name."""
    names = {}
    if any(DEVICES.glob("nv[ihm]*")):  # nvidia0, nvhost-gpu, nvmap
        names["opensled-gpu.conf"] = "gpu-system.conf" if system else "gpu-user.conf"
    asks = values.get("replicas") or values.get("ray_address") or values.get("announce")
    if system and (asks or values.get("server") == MDNS):
        names["opensled-netlink.conf"] = "netlink.conf"
    return {name: (UNITS / file).read_text("utf-8") for name, file in names.items()}
