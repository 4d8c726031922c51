"""The paired devices: lines of the token file, with a comment that says when and from where.

Lines that the user wrote, and limits behind a name, stay as they are.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import NamedTuple

from home.desk.home import Home
from home.pairing.handover import safe_name
from opensled.core.errors import NotFound, UsageError
from opensled.core.files import read_secret_text, write_whole
from opensled.core.suggestion import did_you_mean
from verify_server.access.security import LOCAL_TENANT

TOKEN_BYTES = 32
_PAIRED = re.compile(r"# paired (\S+) from (\S+)")


class PairedDevice(NamedTuple):
    """One line of the token file, without its token."""

    name: str
    when: str  # UTC, ISO 8601; "" for a line of the user's own
    address: str  # from which it was paired


def paired_devices(home: Home) -> list[PairedDevice]:
    """Raises UsageError or NotFound."""
    return [device for line in _lines(home) if (device := _device(line))]


def add_device(home: Home, wish: str, address: str) -> tuple[str, str]:
    """(name, token) of one more device, which is called like `wish` as far as that name is safe and free."""
    token = secrets.token_hex(TOKEN_BYTES)
    with home.lock_folder():
        taken = {LOCAL_TENANT, *(device.name for device in paired_devices(home))}
        name = safe_name(wish, frozenset(taken))
        when = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime())
        _write(home, [*_lines(home), f"{token} {name} # paired {when} from {address}"])
    return name, token


def revoke_device(home: Home, name: str) -> None:
    """Take the tokens of `name` away; raises NotFound without one."""
    with home.lock_folder():
        _write(home, [line for line, called in _named_lines(home, name) if called != name])


def rename_device(home: Home, name: str, wish: str) -> str:
    """Call the device `name` as `wish`, as far as that is safe; its token stays. Returns the new name.

    Raises NotFound without such a device, UsageError for a name that is taken.
    """
    with home.lock_folder():
        named, new = _named_lines(home, name), safe_name(wish)
        if new in {LOCAL_TENANT, *(called for _, called in named)}:
            raise UsageError(f"the name {new!r} is taken; choose another")
        pattern = re.compile(rf"^(\s*\S+\s+){re.escape(name)}(?!\S)")
        _write(home, [pattern.sub(rf"\g<1>{new}", line) if called else line for line, called in named])
    return new


def _named_lines(home: Home, name: str) -> list[tuple[str, str]]:
    """The lines, each with its device's name, "" = none; raises NotFound without a device `name`."""
    devices = [(line, _device(line)) for line in _lines(home)]
    named = [(line, device.name if device else "") for line, device in devices]
    known = [called for _, called in named if called]
    if name not in known:
        raise NotFound(f"no device is called {name!r}; see: opensled pair list{did_you_mean(name, known)}")
    return named


def _lines(home: Home) -> list[str]:
    return read_secret_text(home.tokens, "token file").splitlines()


def _write(home: Home, lines: list[str]) -> None:
    """As a whole: a running server reads the old file or the new one."""
    write_whole(home.tokens, "".join(f"{line}\n" for line in lines).encode(), private=True)


def _device(line: str) -> PairedDevice | None:
    words = line.split("#", 1)[0].split()
    if len(words) < 2:
        return None
    noted = _PAIRED.search(line)
    return PairedDevice(words[1], *(noted.groups() if noted else ("", "")))
