"""Options of `opensled drafts pull`."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.link.link_config import LinkConfig
from opensled.cli.config import option
from opensled.process.logs import LEVELS


@dataclass(frozen=True)
class DraftPullConfig(LinkConfig):
    """The server to fetch the draft from, and the key that must have signed it."""

    signer: str = option(
        "",
        "tenant of this device, and public key that must have signed the draft; ask the operator (`opensled drafts "
        "publish` prints both); stored after the first use; no configuration file can set it",
        metavar="TENANT:KEY",
        group="adapted draft model",
        often=True,
        typed=True,
    )
    previous: bool = option(
        False,
        "go back to the previous draft, without asking the server; the next pull goes forward again",
        often=True,
    )
    json: bool = option(False, "print the result as JSON")
    log_level: str = option("warning", "minimum level of log messages", choices=LEVELS)
    log_json: bool = option(False, "write log messages as JSON, one object per line")
