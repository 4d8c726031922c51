"""Who may come in: the token file, and what a listen address requires."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path

from opensled.address import host_port, is_loopback
from opensled.errors import Unauthorized, UsageError
from opensled.files import read_ascii

LOCAL_TENANT = "local"


@dataclass(frozen=True)
class Tenants:
    """Bearer tokens and the tenants they stand for; none = everybody is the local tenant."""

    by_token: tuple[tuple[str, str], ...] = ()

    def of(self, authorization: str) -> str:
        """The tenant of an `authorization` header ("Bearer TOKEN"); raises Unauthorized."""
        if not self.by_token:
            return LOCAL_TENANT
        scheme, _, given = authorization.partition(" ")
        tenant = ""
        for token, owner in self.by_token:  # every token is compared, so that timing tells nothing
            if hmac.compare_digest(token.encode(), given.encode()):
                tenant = owner
        if scheme.lower() != "bearer" or not tenant:
            raise Unauthorized("a bearer token of this server is needed; pass --token-file FILE")
        return tenant


def read_tenants(path: Path) -> Tenants:
    """A `TOKEN TENANT` pair a line; `#` starts a comment. Others must not be able to read the file."""
    text = read_ascii(path, "token file")
    if path.stat().st_mode & 0o077:
        raise UsageError(f"token file {path} is readable by others; run: chmod 600 {path}")
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise UsageError(f"{path}:{number}: expected 'TOKEN TENANT'")
        pairs.append((words[0], words[1]))
    if not pairs:
        raise UsageError(f"token file {path} holds no token; write a 'TOKEN TENANT' pair a line")
    return Tenants(tuple(pairs))


def require_safe(listen: str, *, has_tls: bool, has_tokens: bool, insecure: bool) -> None:
    """Refuse to listen beyond this machine without TLS and tokens, unless told to."""
    if is_loopback(host_port(listen)[0]) or insecure or (has_tls and has_tokens):
        return
    raise UsageError(
        f"--listen {listen} is reachable by other machines: add --tls-cert, --tls-key and --tokens FILE, "
        "or --insecure if the network itself is trusted"
    )
