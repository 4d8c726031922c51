"""What a device does while its server is away: the choices of `--offline`."""

from dataclasses import dataclass, replace

from edge_client.link.remote import RetryPolicy
from opensled.core.answer import LOCAL_ONLY

STALL, PROVISIONAL = "stall", "provisional"
OFFLINE_MODES = (STALL, PROVISIONAL, LOCAL_ONLY)
LOCAL_GIVE_UP = 10.0  # seconds; a user of `local-only` does not want to wait for minutes


@dataclass(frozen=True)
class Offline:
    """The mode and its bounds. Times in seconds."""

    mode: str = STALL
    look: float = 0.25  # between two checks whether the server is away
    quiet: float = 3.0  # a server that sends nothing for so long counts as away, even if its stream is open
    most: int = 256  # tokens that are drafted, or at a relay vetted, while the server is away
    shows_vetted: bool = False  # readers see what a relay has vetted before the target has confirmed it


def retry_policy(mode: str, give_up: float) -> RetryPolicy:
    """How long a device or a relay tries to reach a lost server; `give_up` in seconds, 0 = the default of the mode."""
    default = RetryPolicy()
    return replace(default, give_up=give_up or (LOCAL_GIVE_UP if mode == LOCAL_ONLY else default.give_up))
