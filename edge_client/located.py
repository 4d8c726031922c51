"""`--server mdns`: the address of the server that announces itself on this network."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from edge_client.link_config import LinkConfig
from opensled import discovery, paired
from opensled.address import host_port
from opensled.errors import UsageError
from opensled.logs import tell

Configured = TypeVar("Configured", bound=LinkConfig)


def located(config: Configured) -> Configured:
    """`config` with HOST:PORT for its server; looks for seconds where it says mdns.

    An announcement gives an address only. The certificate that is found there has to name the server that this device
    was paired with, or --tls-name. Raises UsageError without TLS: then anybody could be that server.
    """
    if config.server != discovery.MDNS:
        return config
    if not (config.tls or config.tls_ca or config.tls_cert):
        raise UsageError(
            "--server mdns needs a server that can prove what it is: pair this device first (opensled edge --pair "
            "CODE), or add --tls-ca FILE"
        )
    name = config.tls_name or _paired_name(config)
    tell("looking for a server that announces itself on this network")
    address = discovery.find(discovery.SERVING)
    tell(f"found one at {address}")
    return replace(config, server=address, tls_name=name)


def _paired_name(config: LinkConfig) -> str:
    """By which name this device was paired with its server, if it is that server's authority that it trusts."""
    server = paired.paired_server()
    own = paired.values({}).get("tls_ca") if server else None
    return host_port(server)[0] if own and config.tls_ca == own else ""
