"""Drafters by name: a new one is one file and one line here (docs: `their.module:Class` works too)."""

from opensled.registry import Registry

DRAFTERS = Registry(
    "drafter",
    {
        "none": "edge_client.drafters.none:NoneFactory",
        "lookup": "edge_client.drafters.lookup:LookupFactory",
        "llamacpp": "edge_client.drafters.llamacpp:LlamaCppFactory",
        "onnx": "edge_client.drafters.onnx:OnnxFactory",
    },
)
