"""Resume tokens: {session, tenant, expiry}, signed with a key that dies with the process."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable


class TokenSigner:
    """A token of another process (a restarted server, another replica) is merely unknown, not an error."""

    def __init__(self, clock: Callable[[], float], lifetime: float) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock
        self._lifetime = lifetime  # seconds

    def sign(self, session: int, tenant: str) -> bytes:
        body = json.dumps([session, tenant, self._clock() + self._lifetime]).encode()
        return self._mac(body) + body

    def session_of(self, token: bytes, tenant: str) -> int | None:
        """The session a token opens for `tenant`, or None when it opens nothing here."""
        mac, body = token[:32], token[32:]
        if not hmac.compare_digest(mac, self._mac(body)):
            return None
        session, owner, expiry = json.loads(body)
        return session if owner == tenant and self._clock() < expiry else None

    def _mac(self, body: bytes) -> bytes:
        return hmac.new(self._key, body, hashlib.sha256).digest()
