"""The server that this device was paired with: what `opensled edge --pair` keeps, and the options that follow from it.

Four files in one folder of the user's configuration. `server.json` is written last and removed first: without it the
others do not count, so no token ever meets the authority of another home.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opensled.cli.config import config_folder
from opensled.core.errors import UsageError


def paired_folder() -> Path | None:
    """None with OPENSLED_NO_CONFIG set."""
    folder = config_folder()
    return folder and folder / "paired"


def require_folder() -> Path:
    """Raises UsageError where no pairing can be kept."""
    folder = paired_folder()
    if folder is None:
        raise UsageError("OPENSLED_NO_CONFIG is set, so a pairing cannot be kept; unset it")
    return folder


def keep(server: str, authority: str, token: str, signer: str = "", name: str = "") -> Path:
    """Remember a server (HOST:PORT) with its authority (PEM), this device's token, who signs its drafts ("" = no
    signer), and how the device is called there; the folder.

    Raises UsageError where nothing can be kept.
    """
    from opensled.core.files import write_whole

    folder = require_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        (folder / "server.json").unlink(missing_ok=True)
        texts = {"ca.pem": authority, "token": f"{token}\n", "signer": f"{signer}\n"}
        texts["server.json"] = json.dumps({"server": server, "name": name})
        for file, text in texts.items():
            write_whole(folder / file, text.encode(), private=True)
    except OSError as error:
        raise UsageError(f"the pairing cannot be kept in {folder}: {error.strerror}") from error
    return folder


def _folder_of(server: str) -> Path | None:
    """The folder, if `server` (HOST:PORT, or mdns for this one) is the paired one."""
    from opensled.net.address import MDNS

    own = paired_server()
    return paired_folder() if own and server.lower() in (own.lower(), MDNS) else None


def signer_of(server: str) -> str:
    """Who signs drafts for this device, as the paired server said through the channel of the code; "" = it did not, or
    `server` is another one."""
    folder = _folder_of(server)
    try:
        return (folder / "signer").read_text("utf-8").strip() if folder else ""
    except (OSError, ValueError):
        return ""


def forget() -> None:
    """The pairing does not count any more."""
    folder = paired_folder()
    if folder is not None:
        (folder / "server.json").unlink(missing_ok=True)


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a paired device, by name. `given`: those that something else sets.

    Whoever names another server gets none of it: the token and the authority belong to the paired one. Raises
    UsageError for a damaged file, if it matters.
    """
    try:
        own = paired_server()
    except UsageError:
        if "server" not in given:
            raise
        return {}
    if not (folder := _folder_of(given.get("server", own))):
        return {}
    return {"server": own, "token_file": str(folder / "token"), "tls": True, "tls_ca": str(folder / "ca.pem")}


def paired_server() -> str:
    """HOST:PORT of the paired server, "" for none. Raises UsageError for a damaged file."""
    return _read_server()[0]


def name_of(token_file: str) -> str:
    """How the paired server calls this device, if `token_file` is the pairing's; "" = not known."""
    try:
        return _read_server()[1] if authority_beside(token_file) else ""
    except UsageError:  # whoever needs the pairing says so
        return ""


def authority_beside(token_file: str) -> Path | None:
    """The authority (PEM file) that belongs to `token_file`, if that is the pairing's; None = it is another file."""
    folder = paired_folder()
    return folder / "ca.pem" if folder and token_file == str(folder / "token") else None


def _read_server() -> tuple[str, str]:
    """HOST:PORT of the paired server and the device's name there, "" for none. Raises UsageError for a damaged file."""
    from opensled.net.address import host_port

    folder = paired_folder()
    path = folder / "server.json" if folder else None
    if path is None or not path.is_file():
        return "", ""
    try:
        known = json.loads(path.read_text("utf-8"))
        host_port(known["server"])
        return str(known["server"]), str(known.get("name", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise UsageError(
            f"{path} is damaged; pair this device again: opensled edge --pair CODE HOST"
        ) from error
