"""`--server mdns`: the address of the server that announces itself on this network."""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import TypeVar

from edge_client.link.link_config import LinkConfig
from home import discovery
from opensled.cli import paired
from opensled.core.errors import UsageError
from opensled.core.files import CLIENT_FLAGS, read_authorities, read_identity, user_path
from opensled.net.address import MDNS, host_port
from opensled.net.outward import tls_context
from opensled.process.logs import tell

Configured = TypeVar("Configured", bound=LinkConfig)


def locate_server(config: Configured) -> Configured:
    """`config` with HOST:PORT for its server; looks for seconds where it says mdns.

    An announcement gives an address only. The certificate that is found there has to name the server that this device
    was paired with, or --tls-name; announcements of others do not count. Raises UsageError without TLS: then anybody
    could be that server.
    """
    if config.server != MDNS:
        return config
    if not (config.tls or config.tls_ca or config.client_cert):
        raise UsageError(
            "--server mdns needs a server that can prove its identity: pair this device first (opensled edge --pair "
            "CODE), or add --tls-ca FILE"
        )
    name = config.tls_name or _paired_name(config)
    tell("looking for a server that announces itself on this network")
    address = discovery.find(discovery.SERVING, trusting_context(config), name)
    tell(f"found one at {address}")
    return replace(config, server=address, tls_name=name)


def trusting_context(config: LinkConfig) -> ssl.SSLContext:
    """A TLS context of what this device trusts. Raises UsageError or NotFound for files it cannot use."""
    context = tls_context(read_authorities(config.tls_ca).decode("ascii", "ignore") if config.tls_ca else "")
    context.set_alpn_protocols(["h2"])  # which gRPC requires
    if read_identity(config.client_cert, config.client_key, CLIENT_FLAGS):
        context.load_cert_chain(user_path(config.client_cert), user_path(config.client_key))
    return context


def _paired_name(config: LinkConfig) -> str:
    """By which name this device was paired with its server, if it is that server's authority that it trusts."""
    server = paired.paired_server()
    own = paired.values({}).get("tls_ca") if server else None
    return host_port(server)[0] if own and config.tls_ca == own else ""
