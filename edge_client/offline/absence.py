"""How a device deals with a server that is away: what its owner can choose."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edge_client.remote import RetryPolicy

STALL, PROVISIONAL, LOCAL_ONLY = "stall", "provisional", "local-only"
OFFLINE_MODES = (STALL, PROVISIONAL, LOCAL_ONLY)
LOCAL_PATIENCE = 10.0  # seconds: nobody chose `local-only` to wait for minutes
HEARTBEAT = 5.0  # seconds between the comments in a stream; proxies give up after 30 to 60


@dataclass(frozen=True)
class Offline:
    """Times in seconds."""

    mode: str = STALL
    look: float = 0.25  # between two looks at whether the server is away
    quiet: float = 3.0  # without a word for so long, it counts as away too, though its stream is not lost
    most: int = 256  # tokens that are drafted without it


def patience_of(mode: str, give_up: float) -> RetryPolicy:
    """How long a lost server is tried again; `give_up` seconds, 0 = as the mode wants it."""
    usual = RetryPolicy()
    return replace(usual, give_up=give_up or (LOCAL_PATIENCE if mode == LOCAL_ONLY else usual.give_up))
