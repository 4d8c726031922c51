"""Options of `opensled pair` and its companions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from home.pairing import PAIRING_PORT
from opensled.cli.addresses import address_option
from opensled.cli.config import option
from opensled.core.errors import UsageError
from opensled.process.logs import LEVELS
from verify_server.options.access_config import FOLDER_HELP


def public_key(key: str) -> None:
    """Raises UsageError unless `key` is empty or has 64 hex digits."""
    if key and not re.fullmatch(r"[0-9a-f]{64}", key):
        raise UsageError("a public key must have 64 hex digits; `opensled drafts keygen` prints it")


@dataclass(frozen=True)
class PairListConfig:
    """The home whose devices to list."""

    folder: str = option("", FOLDER_HELP, metavar="FOLDER")
    json: bool = option(False, "print the list as JSON")


@dataclass(frozen=True)
class PairRevokeConfig:
    """The device whose token to withdraw."""

    name: str = option(
        "", "name of the device, as `opensled pair list` shows it", positional=True, metavar="NAME"
    )
    folder: str = option("", FOLDER_HELP, metavar="FOLDER")
    json: bool = option(False, "print the result as JSON")


@dataclass(frozen=True)
class PairRenameConfig(PairRevokeConfig):
    """The device to call otherwise."""

    new: str = option("", "its new name: a-z, 0-9 and dashes", positional=True, metavar="NEW")


@dataclass(frozen=True)
class PairConfig:
    """Pairing one device."""

    folder: str = option("", FOLDER_HELP, metavar="FOLDER")
    listen: str = address_option(
        f"0.0.0.0:{PAIRING_PORT}",
        "address that the device connects to for pairing; port 0 = any free port",
        apart=True,
        port=PAIRING_PORT,
        host="0.0.0.0",
    )
    server_port: int = option(
        7411,
        "port of `opensled serve`, to which the paired device will connect",
        low=1,
        high=65535,
        metavar="PORT",
    )
    draft_key: str = option(
        "",
        "public key for checking the signatures of adapted drafts (`opensled drafts keygen` prints it); it is given to "
        "this device and all that are paired later; no configuration file can set it",
        metavar="KEY",
        check=public_key,
        typed=True,
    )
    minutes: float = option(10.0, "minutes until the code expires", low=0.01, high=1440, metavar="MINUTES")
    announce: bool = option(
        False,
        "announce the pairing port by multicast DNS, so that `opensled edge --pair CODE` needs no host",
        apart=True,
    )
    log_level: str = option("warning", "minimum level of log messages", choices=LEVELS)
    log_json: bool = option(False, "write log messages as JSON, one object per line")
    json: bool = option(False, "print each event as JSON, one object per line")
