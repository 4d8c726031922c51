"""Who sees the fleet on a server's page, and may switch drafts of devices: its operators, and no tenant."""

from __future__ import annotations

from dataclasses import dataclass, field

from http_api.guard import KeyFile, is_key
from http_api.page.page_routes import EVENTS, SWITCH
from opensled.core.errors import Unauthorized
from opensled.core.files import user_path

FLEET_PATHS = (EVENTS, SWITCH)


@dataclass(frozen=True)
class Operators:
    """The operators' keys; without keys everybody on this machine is one, or (`open` false) nobody."""

    keys: tuple[str, ...] | KeyFile = field(default=(), repr=False)
    open: bool = False

    def admit(self, authorization: str) -> None:
        """Raises Unauthorized for anybody else."""
        if not self.keys:
            if not self.open:
                raise Unauthorized(
                    "only operators may see the fleet: start the server with --operator-keys FILE (one key per "
                    "line), and enter such a key here"
                )
            return
        if not is_key(authorization, self.keys):
            what = "this is no key" if authorization else "this needs a key"
            raise Unauthorized(f"{what} of --operator-keys; the token of a tenant does not count")


def operators(path: str, open: bool) -> Operators:
    """Of the file of --operator-keys ("" = none). Raises UsageError or NotFound for a file that cannot be used."""
    return Operators(KeyFile(user_path(path)) if path else (), open)
