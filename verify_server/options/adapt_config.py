"""Options of `opensled serve` for drafts that go on learning: see plug-in `adapt`."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.cli.config import option


@dataclass(frozen=True)
class AdaptConfig:
    """What a server keeps of tenants with keep=1 in the token file, and what it hands out."""

    keep_text: str = option(
        "",
        "folder for the texts of tenants with keep=1 in the token file: token ids, and the 32 likeliest tokens at each "
        "position; `opensled adapt` trains on them; default: keep nothing",
        metavar="FOLDER",
        group="text kept for training",
    )
    keep_text_mb: int = option(
        256,
        "maximum size of one tenant's kept text; the oldest text is deleted first",
        low=1,
        metavar="MB",
        file_only=True,
    )
    keep_text_days: float = option(
        30.0, "days after which kept text is deleted", low=0.0001, high=3650, metavar="DAYS", file_only=True
    )
    drafts: str = option(
        "",
        "folder of adapted draft models (opensled drafts publish); each is handed out to the devices of its tenant; "
        "default: none",
        metavar="FOLDER",
        group="adapted draft models",
    )
