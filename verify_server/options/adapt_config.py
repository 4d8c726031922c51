"""Options of `opensled serve` for drafts that go on learning: see plug-in `adapt`."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.cli.config import option


@dataclass(frozen=True)
class AdaptConfig:
    """What a server keeps of tenants with keep=1 in the token file, and what it hands out."""

    keep_text: str = option(
        "",
        "keep texts of tenants with keep=1 in the token file here: ids and the 32 likeliest tokens at each; for "
        "opensled adapt; default: keep nothing",
        metavar="FOLDER",
        group="text that is kept",
    )
    keep_text_mb: int = option(
        256, "most of a tenant's kept text; the oldest goes first", low=1, metavar="MB", file_only=True
    )
    keep_text_days: float = option(
        30.0, "days after which kept text is deleted", low=0.0001, high=3650, metavar="DAYS", file_only=True
    )
    drafts: str = option(
        "",
        "hand out the drafts in this folder, to devices of the tenant that each was published for (opensled drafts "
        "publish); default: none",
        metavar="FOLDER",
        group="drafts that are handed out",
    )
