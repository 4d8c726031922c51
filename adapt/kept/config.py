"""Options of `opensled serve` that keep text, and of `opensled kept`."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.cli.config import option

FOLDER_HELP = "folder of the texts that serve --keep-text keeps"


@dataclass(frozen=True)
class KeepConfig:
    """What a server keeps of tenants with keep=1 in the token file."""

    keep_text: str = option(
        "",
        "keep texts of tenants with keep=1 in the token file here: ids and the 32 likeliest tokens at each; for "
        "opensled adapt; default: keep nothing",
        metavar="FOLDER",
        group="text that is kept",
    )
    keep_text_mb: int = option(
        256, "most of a tenant's kept text; the oldest goes first", low=1, metavar="MB"
    )
    keep_text_days: float = option(
        30.0, "days after which kept text is deleted", low=0.0001, high=3650, metavar="DAYS"
    )


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
