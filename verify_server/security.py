"""Who may come in and how much he may take: TLS, the token file, and what a listen address requires."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from opensled.address import is_local
from opensled.errors import Unauthorized, UsageError
from opensled.files import Identity, read_authorities, read_identity, read_secret_text

LOCAL_TENANT = "local"
LINE = "TOKEN TENANT [max_sessions=N] [max_prompt=N] [positions_per_s=N] [kv_tokens=N]"


@dataclass(frozen=True)
class Tls:
    """The server's own identity, and whose certificates its clients must show (PEM; none = they need not)."""

    identity: Identity
    client_ca: bytes = b""


@dataclass(frozen=True)
class TenantLimits:
    """What one tenant may take; 0 = no limit of his own."""

    max_sessions: int = 0  # at the same time
    max_prompt: int = 0  # tokens; those committed before, by which a lost sequence is reopened, do not count
    positions_per_s: int = 0  # draft tokens that the target verifies for him, accepted or not
    kv_tokens: int = 0  # of KV memory that his sequences hold together; more of them share it


@dataclass(frozen=True)
class Tenants:
    """Who stands behind a stream: by bearer token, else by certificate, else everybody is the local tenant."""

    by_token: tuple[tuple[str, str], ...] = ()
    by_certificate: bool = False  # without tokens: the common name of the client's certificate
    limits: Mapping[str, TenantLimits] = field(default_factory=dict)
    default: TenantLimits = TenantLimits()  # of tenants that `limits` does not name

    @property
    def anonymous(self) -> bool:
        """Whether nobody is asked who he is."""
        return not (self.by_token or self.by_certificate)

    def of(self, authorization: str, names: Sequence[bytes] = ()) -> str:
        """The tenant of an `authorization` header ("Bearer TOKEN") and of the common names (UTF-8) in a verified
        certificate; raises Unauthorized."""
        if self.by_token:
            return self._of_token(authorization)
        return _of_names(names) if self.by_certificate else LOCAL_TENANT

    def limits_of(self, tenant: str) -> TenantLimits:
        return self.limits.get(tenant, self.default)

    @property
    def kv_budgets(self) -> set[int]:
        """Those that are set, in tokens."""
        return {limits.kv_tokens for limits in (self.default, *self.limits.values())} - {0}

    def _of_token(self, authorization: str) -> str:
        scheme, _, given = authorization.partition(" ")
        tenant = ""
        for token, owner in self.by_token:  # every token is compared, so that timing tells nothing
            if hmac.compare_digest(token.encode(), given.encode()):
                tenant = owner
        if scheme.lower() != "bearer" or not tenant:
            raise Unauthorized("a bearer token of this server is needed; pass --token-file FILE")
        return tenant


def _of_names(names: Sequence[bytes]) -> str:
    """Strict: two certificates must never come out as one tenant because of what was ignored or replaced."""
    try:
        (name,) = (name.decode() for name in names)
    except ValueError:  # none, several, or not UTF-8
        name = ""
    if not name:
        raise Unauthorized("the client certificate names nobody: it needs one common name, the tenant's")
    return name


def read_tls(cert: str, key: str, client_ca: str) -> Tls | None:
    """What the TLS flags name, checked; None without them. Raises UsageError or NotFound."""
    identity = read_identity(cert, key)
    if identity is not None:
        return Tls(identity, read_authorities(client_ca) if client_ca else b"")
    if client_ca:
        raise UsageError("--tls-client-ca needs --tls-cert and --tls-key")
    return None


def read_tenants(path: Path, default: TenantLimits = TenantLimits()) -> Tenants:
    """The tenants of a token file, a line for each token as LINE says; `#` starts a comment.

    Limits are the tenant's, on whichever of his lines they stand; `default` fills in. Raises UsageError or NotFound,
    never with a token in it.
    """
    owners: dict[str, str] = {}
    given: dict[str, dict[str, int]] = {}
    for number, line in enumerate(read_secret_text(path, "token file").splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        if len(words) < 2 or "=" in words[1]:
            raise UsageError(f"{where}: expected '{LINE}'")
        token, tenant, *limits = words
        if token in owners:
            raise UsageError(f"{where}: this token stands in the file twice")
        owners[token] = tenant
        for name, value in (_limit(word, where) for word in limits):
            if given.setdefault(tenant, {}).setdefault(name, value) != value:
                raise UsageError(f"{where}: {name} of {tenant} is set to another number above")
    if not owners:
        raise UsageError(f"token file {path} holds no token; write a 'TOKEN TENANT' pair a line")
    return Tenants(
        tuple(owners.items()),
        limits={tenant: replace(default, **named) for tenant, named in given.items()},
        default=default,
    )


def _limit(word: str, where: str) -> tuple[str, int]:
    name, _, value = word.partition("=")
    if name not in TenantLimits.__dataclass_fields__ or not (value.isascii() and value.isdigit()):
        raise UsageError(f"{where}: expected '{LINE}', where N is a whole number and 0 means no limit")
    return name, int(value)


def require_safe(listen: str, *, has_tls: bool, knows_clients: bool, insecure: bool) -> None:
    """Refuse to listen beyond this machine without TLS and a way to know clients, unless told to."""
    if is_local(listen) or insecure or (has_tls and knows_clients):
        return
    raise UsageError(
        f"--listen {listen} is reachable by other machines: add --tls-cert, --tls-key and --tokens FILE (or "
        "--tls-client-ca FILE), or --insecure if the network itself is trusted"
    )
