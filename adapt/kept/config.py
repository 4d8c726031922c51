"""Options of `opensled kept`."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.cli.config import option

FOLDER_HELP = "folder given to `opensled serve --keep-text`"


@dataclass(frozen=True)
class KeptListConfig:
    """The folder whose texts to list."""

    keep_text: str = option("", FOLDER_HELP, metavar="FOLDER", often=True)
    json: bool = option(False, "print the list as JSON")


@dataclass(frozen=True)
class KeptDeleteConfig:
    """The tenant whose texts to delete."""

    tenant: str = option("", "tenant, as `opensled kept list` shows it", positional=True, metavar="TENANT")
    keep_text: str = option("", FOLDER_HELP, metavar="FOLDER", often=True)
    json: bool = option(False, "print the result as JSON")
