"""Drafters by name: a new one is one file and one line here (docs: `their.module:Class` works too)."""

from opensled.registry import Registry

DRAFTERS = Registry(
    "drafter",
    {
        "none": "edge_client.drafters.none:NoneFactory",
        "lookup": "edge_client.drafters.lookup:LookupFactory",
        "cacheback": "edge_client.drafters.cacheback:CachebackFactory",
        "llamacpp": "edge_client.drafters.llamacpp:LlamaCppFactory",
        "onnx": "edge_client.drafters.onnx:OnnxFactory",
        "chain": "edge_client.drafters.chain:ChainFactory",
        "accelerated": "edge_client.drafters.accelerated:AcceleratedFactory",
    },
)

OFF = "off"  # instead of a draft table's file: none
COMPOSED = ("chain", "accelerated")  # of others, which are named behind a colon


def plain_names() -> list[str]:
    """Names that stand for themselves."""
    return [name for name in DRAFTERS.names() if name not in COMPOSED]
