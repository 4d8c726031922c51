"""Where a service finds what pairing left.

A user's service reads that user's folders, and sees changes at once. A service of the system has an account of its
own and sees no home folder. When it starts, systemd gives it copies of root's files, but never the key of the
authority.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from home.service.service_flags import Given, bind_option, option_of
from opensled.cli import paired
from opensled.cli.config import user_folder
from opensled.core.errors import NotFound

# What `opensled serve --paired` reads of its folder, by the options that name the same (home/desk/home.py).
HOME_FILES = {"tls_cert": "server.pem", "tls_key": "server.key", "tokens": "tokens.txt"}


def with_pairing(service: str, flags: Sequence[Given], system: bool) -> list[Given]:
    """The flags with what the pairing stands for, where the service cannot look it up itself. Raises NotFound."""
    values = {each.option.name: each.value for each in flags}
    if not system:
        return list(flags)
    if service == "edge":
        known = paired.values(values)
        return [
            *flags,
            *(bind_option(service, name, value) for name, value in known.items() if name not in values),
        ]
    if not values.get("paired"):
        return list(flags)
    home = _home(flags)
    if not _has_devices(home / HOME_FILES["tokens"]):
        raise NotFound(
            f"no device is paired in {home}, and a service of the system sees later ones only after a restart: pair "
            "one as root first (opensled pair), or install a service of your own account, without sudo"
        )
    kept = [each for each in flags if each.option.name not in ("paired", "folder")]
    return [*kept, *(bind_option(service, name, str(home / file)) for name, file in HOME_FILES.items())]


def _has_devices(tokens: Path) -> bool:
    """Whether the file holds a line that is no comment."""
    lines = tokens.read_text("utf-8", "replace").splitlines() if tokens.is_file() else []
    return any(line.split("#")[0].strip() for line in lines)


def folders(service: str, flags: Sequence[Given]) -> list[Path]:
    """Folders with credentials of pairing that the service reads itself."""
    values = {each.option.name: each.value for each in flags}
    if service == "edge":
        folder = paired.paired_folder()
        return [folder] if folder and paired.values(values) else []
    return [_home(flags)] if values.get("paired") else []


def _home(flags: Sequence[Given]) -> Path:
    named = [each.path for each in flags if each.option == option_of("serve", "folder") and each.path]
    return named[0] if named else user_folder() / "home"
