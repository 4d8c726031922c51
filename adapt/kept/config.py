"""Options of `opensled kept`."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.cli.config import option

FOLDER_HELP = "folder of the texts that serve --keep-text keeps"


@dataclass(frozen=True)
class KeptListConfig:
    """Whose texts to list."""

    keep_text: str = option("", FOLDER_HELP, metavar="FOLDER", often=True)
    json: bool = option(False, "print them as JSON")


@dataclass(frozen=True)
class KeptDeleteConfig:
    """Whose texts to delete."""

    tenant: str = option("", "the tenant, as opensled kept list shows it", positional=True, metavar="TENANT")
    keep_text: str = option("", FOLDER_HELP, metavar="FOLDER", often=True)
    json: bool = option(False, "print what was deleted as JSON")
