"""What gRPC's errors mean for the person at the device: the cause in plain words, and what to do next."""

from __future__ import annotations

import grpc

from opensled.core.errors import (
    InvalidRequest,
    Loading,
    OpenSledError,
    ProtocolError,
    Unauthorized,
    Unreachable,
)
from opensled.net.address import host_port, is_local
from opensled.net.outward import grpc_proxy, unusable_authorities

# The error of grpc.aio for a write after the other end has finished; messages not yet read are lost too.
_LATE_WRITE = "Internal error from Core"
_LOST = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}

NOTHING_LISTENS = "nothing listens there"
_OTHER_PROGRAM = (
    "another program listens there",
    "name the address of `opensled serve`, not of a device's API; its usual port is 7411",
)
_NO_NAME = ("no machine has this name", "check its spelling, or give the IP address")
_STRANGER = (
    "its certificate comes from an authority that this device does not know",
    "name the authority's file with --tls-ca (or in SSL_CERT_FILE), or pair this device again",
)
# A part of gRPC's text -> what it means, and the next step. The first that matches counts.
_CAUSES = (
    ("lookup", *_NO_NAME),
    ("name not found", *_NO_NAME),
    (
        "WRONG_VERSION_NUMBER",
        "it does not speak TLS",
        "leave out --tls and --tls-ca, or start it with --tls-cert and --tls-key",
    ),
    (
        "Hostname Verification",
        "its certificate is for another name",
        "use the name or address that stands in the certificate",
    ),
    (
        "certificate has expired",
        "its certificate has expired",
        "renew it on the server, or set this device's clock: timedatectl set-ntp true",
    ),
    (
        "certificate is not yet valid",
        "its certificate is not valid yet",
        "set this device's clock: timedatectl set-ntp true",
    ),
    ("CERTIFICATE_VERIFY_FAILED", *_STRANGER),
    ("certificate signature failure", *_STRANGER),  # of an authority that has the same name as ours
    ("Failed parsing HTTP/2", *_OTHER_PROGRAM),
    ("before receiving SETTINGS", *_OTHER_PROGRAM),
)


def explain(code: grpc.StatusCode, detail: str, server: str, tls: bool, ca: bool = False) -> OpenSledError:
    """The error of a call to `server` that ended with this status; over `tls`, with authorities of a file (`ca`)."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return InvalidRequest(f"the prompt is larger than {server} takes in one message", "prompt")
    if detail == Loading.words:
        return Loading(f"the server at {server} is loading its model; try again")
    if code in _LOST:
        return Unreachable(f"no server answers at {server}{_cause_and_remedy(detail, server, tls, ca)}")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return Unauthorized(f"{server}: {detail}")
    if code is grpc.StatusCode.OK or detail == _LATE_WRITE:
        return Unreachable(f"{server} ended the stream")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ProtocolError(f"{server} is a gRPC server, but not of OpenSLED; check --server")
    return OpenSledError(f"{server}: {detail}")


def _cause_and_remedy(detail: str, server: str, tls: bool, ca: bool) -> str:
    for part, cause, remedy in _CAUSES:
        if part in detail:
            broken = unusable_authorities() if (cause, remedy) == _STRANGER and not ca else ""
            return f": {cause}; {broken}{remedy}"
    if "Connection refused" in detail:
        return f": {NOTHING_LISTENS}; {_start(server)}"
    if "Socket closed" in detail or "Connection reset" in detail:
        return f": it ended the connection; {_tls_remedy(tls)}"
    if proxy := grpc_proxy(server):
        place = proxy.rpartition("@")[2]
        return (
            f" through the proxy {place} (grpc_proxy); add {host_port(server)[0]} to no_proxy to go past it"
        )
    cause = detail.rpartition(": ")[2].strip("[] ")
    return f"{f' ({cause})' if cause else ''}; check the address, and that the server runs"


def _start(server: str) -> str:
    if is_local(server):
        return f"start one: opensled serve --listen {server}"
    return (
        "check host and port, and that `opensled serve` runs there and listens on an address of its network"
    )


def _tls_remedy(tls: bool) -> str:
    if tls:
        return "if it asks devices for certificates, add --client-cert and --client-key"
    return (
        "if it speaks TLS, pair this device (opensled pair there, opensled edge --pair CODE here), or add --tls, or "
        "--tls-ca FILE for an authority of your own"
    )
