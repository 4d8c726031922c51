"""Options of `opensled drafts pull`."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.link.link_config import LinkConfig
from opensled.cli.config import option
from opensled.process.logs import LEVELS


@dataclass(frozen=True)
class DraftPullConfig(LinkConfig):
    """Whose draft to fetch, and who has to have signed it."""

    signer: str = option(
        "",
        "who signs drafts for this device: TENANT:KEY as the operator told it (opensled drafts publish prints it); "
        "needed once, then remembered; no configuration file can set it",
        metavar="TENANT:KEY",
        group="the draft",
        often=True,
        typed=True,
    )
    previous: bool = option(
        False, "go back to the draft before; asks no server, and the next pull goes forward again", often=True
    )
    json: bool = option(False, "print what is there now as JSON")
    log_level: str = option("warning", "lowest level of messages to log", choices=LEVELS)
    log_json: bool = option(False, "log one JSON object per line")
