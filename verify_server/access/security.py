"""Which clients are admitted and their limits: TLS, the token file, and what a listen address requires."""

import hmac
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from opensled.core.errors import Unauthorized, UsageError
from opensled.core.files import Identity, read_authorities, read_identity, read_secret_text
from opensled.net.address import is_local
from opensled.process.watched_file import Watched

log = logging.getLogger(__name__)

LOCAL_TENANT = "local"
LINE = (
    "TOKEN TENANT [max_sessions=N] [max_prompt=N] [positions_per_s=N] [kv_tokens=N] [max_pace=N] [strict=1] "
    "[keep=1]"
)


@dataclass(frozen=True)
class Tls:
    """The server's identity, and the authorities of its clients' certificates (PEM; none = not needed)."""

    identity: Identity
    client_ca: bytes = b""
    files: Watched[Identity] | None = None  # where `identity` comes from; None = it stays

    @property
    def newest(self) -> Identity:
        """The identity now: files that were replaced count for new connections."""
        return self.files.current() if self.files else self.identity


@dataclass(frozen=True)
class TenantLimits:
    """What one tenant may take; 0 = no limit."""

    max_sessions: int = 0  # at the same time
    max_prompt: int = 0  # tokens; the committed tokens of a reopened sequence do not count
    positions_per_s: int = 0  # draft tokens that the target verifies, accepted or not
    kv_tokens: int = 0  # tokens of KV memory that all sequences hold together
    max_pace: int = 0  # tokens/s that are promised to one sequence at most
    strict: int = 0  # 1 = no rule may change what its users read, whatever they ask for
    keep: int = 0  # 1 = its texts are kept where the server keeps any (--keep-text): it has agreed


@dataclass(frozen=True)
class Tenants:
    """The tenant of a call: by bearer token, else by certificate, else all clients are the local tenant."""

    by_token: tuple[tuple[str, str], ...] = ()
    by_certificate: bool = False  # without tokens: the common name of the client's certificate
    limits: Mapping[str, TenantLimits] = field(default_factory=dict)
    default: TenantLimits = TenantLimits()  # for tenants that are not in `limits`

    @property
    def named_by_certificate(self) -> bool:
        """Whether the common name of a client's certificate is its tenant."""
        return self.by_certificate and not self.by_token

    @property
    def anonymous(self) -> bool:
        """Whether clients need neither a token nor a certificate."""
        return not (self.by_token or self.by_certificate)

    def of(self, authorization: str, names: Sequence[bytes] = ()) -> str:
        """The tenant of an `authorization` header ("Bearer TOKEN") and of the common names (UTF-8) in a verified
        certificate; raises Unauthorized."""
        if self.by_token:
            return self.of_token(authorization)
        return _of_names(names) if self.by_certificate else LOCAL_TENANT

    def limits_of(self, tenant: str) -> TenantLimits:
        return self.limits.get(tenant, self.default)

    @property
    def kv_budgets(self) -> set[int]:
        """All KV budgets that are set, in tokens."""
        return {limits.kv_tokens for limits in (self.default, *self.limits.values())} - {0}

    def of_token(self, authorization: str) -> str:
        """The tenant of a bearer token; raises Unauthorized."""
        scheme, _, given = authorization.partition(" ")
        tenant = ""
        for token, owner in self.by_token:  # compares every token, so that timing reveals nothing
            if hmac.compare_digest(token.encode(), given.strip().encode()):
                tenant = owner
        if scheme.lower() != "bearer":
            raise Unauthorized(
                "this server requires a bearer token: pair this device (opensled pair on the server), or pass "
                "--token-file FILE"
            )
        if not tenant:
            raise Unauthorized(
                "this bearer token is not one of the server's; check --token-file, add the token to the file of "
                "serve --tokens, or pair this device again"
            )
        return tenant


@dataclass(frozen=True)
class _FileTenants(Tenants):
    """The tenants of a token file, which is read again when it changes. New calls are judged by it."""

    file: Watched[Tenants] = field(kw_only=True)

    @property
    def anonymous(self) -> bool:
        """Never, also where the file holds no token: then nobody has access."""
        return False

    def of(self, authorization: str, names: Sequence[bytes] = ()) -> str:
        try:
            return self.file.current().of_token(authorization)
        except Unauthorized:  # a token may be younger than the last look at the file
            return self.file.current(at_once=True).of_token(authorization)

    def limits_of(self, tenant: str) -> TenantLimits:
        return self.file.latest.limits_of(tenant)

    @property
    def kv_budgets(self) -> set[int]:
        return self.file.latest.kv_budgets


def watched_tenants(path: Path, default: TenantLimits, may_be_empty: bool = False) -> _FileTenants:
    """The tenants of a token file, now and after changes; raises what `read_tenants` raises."""
    return _FileTenants(file=Watched([path], partial(read_tenants, path, default, may_be_empty)))


def _of_names(names: Sequence[bytes]) -> str:
    """Strict: two certificates must not become one tenant because a part of a name is ignored or replaced."""
    try:
        (name,) = (name.decode() for name in names)
    except ValueError:  # none, several, or not UTF-8
        name = ""
    if not (name and name.isprintable()):  # a NUL would end the name for some of its readers
        raise Unauthorized(
            "the client certificate needs exactly one common name, the tenant's, without control characters"
        )
    return name


def read_tls(cert: str, key: str, client_ca: str) -> Tls | None:
    """The files of the TLS flags, checked; None without the flags. Raises UsageError or NotFound."""
    if read_identity(cert, key) is not None:
        files = Watched((cert, key), partial(_identity, cert, key))
        return Tls(files.latest, read_authorities(client_ca) if client_ca else b"", files)
    if client_ca:
        raise UsageError("--tls-client-ca needs --tls-cert and --tls-key")
    return None


def _identity(cert: str, key: str) -> Identity:
    found = read_identity(cert, key)
    assert found is not None
    return found


def read_tenants(path: Path, default: TenantLimits = TenantLimits(), may_be_empty: bool = False) -> Tenants:
    """The tenants of a token file, one line per token in the form of LINE; `#` starts a comment.

    Limits on any line of a tenant hold for the whole tenant; `default` gives the others. Without `may_be_empty` a file
    that holds no token is an error. Raises UsageError or NotFound; their messages hold no token.
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
            raise UsageError(f"{where}: this token is in the file twice")
        owners[token] = tenant
        for name, value in (_limit(word, where) for word in limits):
            if given.setdefault(tenant, {}).setdefault(name, value) != value:
                raise UsageError(f"{where}: {name} of {tenant} is set to another number above")
    if not (owners or may_be_empty):
        raise UsageError(f"token file {path} holds no token; write one 'TOKEN TENANT' pair per line")
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


def require_safe_listen(
    listen: str, *, has_tls: bool, knows_clients: bool, insecure: bool, flag: str = "--listen"
) -> None:
    """Listening beyond this machine needs TLS and known clients; refuse it without them, or warn if `insecure`.

    `flag` names the listener.
    """
    if is_local(listen) or (has_tls and knows_clients):
        return
    if not insecure:
        raise UsageError(
            f"{flag} {listen} is reachable by other machines: add --paired (see opensled pair), or --tls-cert, "
            "--tls-key and --tokens FILE (or --tls-client-ca FILE), or --insecure if the network itself is trusted"
        )
    danger = (
        "gets its tokens in clear text"
        if knows_clients
        else "takes requests from every client that reaches it"
    )
    log.warning("%s %s", listen, danger)
