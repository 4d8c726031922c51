"""Drafters by name: a new one is one file and one line here. `their.module:Factory` names one from elsewhere."""

import re

from opensled.process.registry import Registry

DRAFTERS = Registry(
    "drafter",
    {
        "none": "edge_client.drafters.none:NoneFactory",
        "lookup": "edge_client.drafters.lookup:LookupFactory",
        "cacheback": "edge_client.drafters.cacheback:CachebackFactory",
        "llamacpp": "edge_client.drafters.llamacpp:LlamaCppFactory",
        "onnx": "edge_client.drafters.onnx:OnnxFactory",
        "server": "edge_client.draft_servers.server:ServerFactory",
        "chain": "edge_client.drafters.chain:ChainFactory",
        "accelerated": "edge_client.drafters.accelerated:AcceleratedFactory",
    },
)

AUTO = "auto"
OFF = "off"  # in place of the file of a draft table: use none
COMPOSED = ("chain", "accelerated")  # made of other drafters, which are named after a colon


def require_drafter(name: str) -> None:
    """Raises UsageError, which names the choices, for what is no drafter, nor made of drafters."""
    kind, _, parts = name.partition(":")
    for part in parts.split(",") if kind in COMPOSED and parts else [name]:
        DRAFTERS.require(part.strip(), AUTO)


def asks_server(name: str) -> bool:
    """Whether a drafter, such as `chain:lookup,server`, asks the server of --draft-url."""
    return "server" in re.split("[:,]", name)


def plain_names() -> list[str]:
    """Names of drafters that need no other drafter."""
    return [name for name in DRAFTERS.names() if name not in COMPOSED]
