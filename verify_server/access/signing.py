"""What the server signs: resume tokens {session, tenant, expiry, replica} and gateway credentials {tenant, expiry}.

Without a cluster each process draws its own key. The replicas and gateways of a cluster share one: a replica knows
only its own sessions, a gateway reads from a token which replica holds its session.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from opensled.core.errors import Unauthorized
from verify_server.access.security import Tenants

KEY_BYTES = MAC_BYTES = 32
# The number of a session that a gateway has placed and no replica has begun; real numbers count from 1.
UNBEGUN = 0
TOKEN_SECONDS = 24 * 3600.0  # for which a resume token is valid; chosen: longer than any answer takes
# For which a gateway credential is valid. Chosen: the clocks of a cluster may differ a little.
CREDENTIAL_SECONDS = 60.0


def derive_key(key: bytes, purpose: str) -> bytes:
    """A key for one `purpose`, derived from the key that a cluster shares."""
    return hmac.new(key, b"key\0" + purpose.encode(), hashlib.sha256).digest()


class _ClaimsSigner:
    """Signs JSON values that expire; `purpose` keeps one kind of token from being taken for another."""

    def __init__(self, key: bytes, purpose: str, clock: Callable[[], float], lifetime: float) -> None:
        self._key = derive_key(key or secrets.token_bytes(KEY_BYTES), purpose)
        self._clock, self._lifetime = clock, lifetime

    def sign(self, *claims: Any) -> bytes:
        body = json.dumps([self._clock() + self._lifetime, *claims]).encode()
        return self._mac(body) + body

    def claims(self, token: bytes) -> list[Any] | None:
        """The signed claims; None if the key or the purpose is another one, or the token has expired."""
        mac, body = token[:MAC_BYTES], token[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body)):
            return None
        expiry, *claims = json.loads(body)
        return claims if self._clock() < expiry else None

    def _mac(self, body: bytes) -> bytes:
        return hmac.new(self._key, body, hashlib.sha256).digest()


class TokenSigner:
    """Resume tokens. A token of another process (a restarted server, another replica) is unknown, not an error."""

    def __init__(
        self, clock: Callable[[], float], lifetime: float, key: bytes = b"", replica: str = ""
    ) -> None:
        """`clock` and `lifetime` in seconds; several processes with one `key` need the wall clock. b"" = draw a key.

        `replica`: the id of this replica; "" = there is only one server.
        """
        self._signer, self._replica = _ClaimsSigner(key, "resume", clock, lifetime), replica

    def sign(self, session: int, tenant: str, replica: str = "") -> bytes:
        """A token for a session of `replica`; "" = this one."""
        return self._signer.sign(session, tenant, replica or self._replica)

    def session_of(self, token: bytes, tenant: str) -> int | None:
        """The session that a token of `tenant` names; None = no session of this replica."""
        session, replica = self._open(token, tenant)
        return session if replica == self._replica and session != UNBEGUN else None

    def home_of(self, token: bytes, tenant: str) -> tuple[str, bool]:
        """The replica that a token of `tenant` names ("" = none), and whether a session has begun there."""
        session, replica = self._open(token, tenant)
        return replica or "", bool(replica) and session != UNBEGUN

    def _open(self, token: bytes, tenant: str) -> tuple[int | None, str | None]:
        session, owner, replica = self._signer.claims(token) or (None, None, None)
        return (session, replica) if owner == tenant else (None, None)


class GatewayCredentials:
    """Bearer tokens with which a gateway forwards the calls of its clients: a replica reads the tenant from them."""

    def __init__(self, key: bytes, clock: Callable[[], float]) -> None:
        assert key, "gateways and replicas share a key"
        self._signer = _ClaimsSigner(key, "pass", clock, CREDENTIAL_SECONDS)

    def header(self, tenant: str) -> str:
        """The `authorization` of a call made for `tenant`."""
        return "Bearer " + base64.b64encode(self._signer.sign(tenant)).decode()

    def tenant_of(self, authorization: str) -> str:
        """The tenant for whom a call is made; raises Unauthorized."""
        scheme, _, given = authorization.partition(" ")
        try:
            claims = self._signer.claims(base64.b64decode(given, validate=True))
        except (binascii.Error, ValueError):
            claims = None
        if scheme != "Bearer" or claims is None:
            raise Unauthorized("only gateways of this cluster may call this address; connect to a gateway")
        return str(claims[0])


@dataclass(frozen=True)
class GatewayTenants(Tenants):
    """The tenants of calls that gateways forward, where only gateways are admitted."""

    credentials: GatewayCredentials = field(kw_only=True)

    @property
    def anonymous(self) -> bool:
        return False

    def of(self, authorization: str, names: Sequence[bytes] = ()) -> str:
        return self.credentials.tenant_of(authorization)
