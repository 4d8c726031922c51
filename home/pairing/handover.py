"""The code that a person carries from the server's screen to the device: eight digits in two groups, because every
keyboard has them and every language reads them aloud. And what both ends tell each other over the channel that it
makes: JSON, every field checked by the end that reads it."""

from __future__ import annotations

import json
import re
import secrets
import ssl
from typing import Any, NamedTuple

from opensled.core.errors import ProtocolError, UsageError
from opensled.net.address import as_ip, host_port

DIGITS = 8  # of a code
MAX_NAME = 32  # characters of a device's name
MAX_HOST = 253  # of a host's name (RFC 1035)
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?", re.IGNORECASE)
_TOKEN = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")


def new_code() -> str:
    """A fresh code, as it is shown: "4821-0937"."""
    digits = f"{secrets.randbelow(10**DIGITS):0{DIGITS}}"
    return f"{digits[: DIGITS // 2]}-{digits[DIGITS // 2 :]}"


def read_code(typed: str) -> str:
    """The digits of a code as a person types it, with dashes, dots and spaces or without; raises UsageError."""
    digits = "".join(sign for sign in typed if sign not in "-. ")
    if len(digits) != DIGITS or not (digits.isascii() and digits.isdigit()):
        raise UsageError(
            f"{typed[:40]!r} is not a pairing code; a code has {DIGITS} digits, such as 4821-0937"
        )
    return digits


def is_host(host: str) -> bool:
    """Whether this is an IP address, or a name that a certificate and a URL can hold."""
    if as_ip(host):
        return "%" not in host  # a certificate cannot name an address of one link
    return len(host) <= MAX_HOST and _HOST.fullmatch(host) is not None


def safe_name(given: str, taken: frozenset[str] = frozenset()) -> str:
    """A name like `given` for a tenant: a-z, 0-9 and dashes, MAX_NAME at most, and none of `taken`."""
    plain = re.sub(r"[^a-z0-9]+", "-", given[:200].lower()).strip("-")[: MAX_NAME - 5].strip("-") or "device"
    count, name = 1, plain
    while name in taken:
        count += 1
        name = f"{plain}-{count}"
    return name


class PairRequest(NamedTuple):
    """From the device: how it called the server, and its own name."""

    host: str
    name: str

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode()


class Grant(NamedTuple):
    """From the server: all that the device needs from now on."""

    server: str  # HOST:PORT
    authority: bytes  # certificate, DER
    token: str
    name: str  # of the device, as the server's tenant
    signer: str = ""  # public key (hex) that signs drafts for the device; "" = none

    @property
    def authority_pem(self) -> str:
        return ssl.DER_cert_to_PEM_cert(self.authority)

    def encode(self) -> bytes:
        return json.dumps(self._asdict() | {"authority": self.authority_pem}).encode()


def read_request(text: bytes) -> PairRequest:
    """Raises ProtocolError. The device's name may be any text: the server makes it safe."""
    said = _fields(text, PairRequest)
    if not is_host(said["host"]):
        raise ProtocolError("the device sent an invalid host name of the server")
    return PairRequest(said["host"], said["name"][:200])


def read_grant(text: bytes) -> Grant:
    """Raises ProtocolError."""
    said = _fields(text, Grant)
    try:
        host, port = host_port(said["server"])
        authority = ssl.PEM_cert_to_DER_cert(said["authority"])
    except (UsageError, ValueError) as error:
        raise ProtocolError("the server sent an invalid address or certificate") from error
    signer = said["signer"]
    if signer and not _TOKEN.fullmatch(signer):
        raise ProtocolError("the server sent an invalid key for signatures")
    if not (is_host(host) and port and _TOKEN.fullmatch(said["token"]) and _NAME.fullmatch(said["name"])):
        raise ProtocolError("the server sent an invalid address, token or name")
    return Grant(said["server"], authority, said["token"], said["name"], signer)


def _fields(text: bytes, kind: type[PairRequest] | type[Grant]) -> dict[str, str]:
    """The fields of `kind`, all of them texts; other fields, of a later release, are left out.

    A field with a default may be missing: an earlier release knows none of that name.
    """
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    said = {**kind._field_defaults, **found} if isinstance(found, dict) else {}
    if not all(isinstance(said.get(name), str) for name in kind._fields):
        raise ProtocolError("the other end sent an invalid pairing message")
    return {name: said[name] for name in kind._fields}
