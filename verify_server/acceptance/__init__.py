"""Acceptance rules by name: which prefix of a draft stands. One file each, pure Python over Scores."""

from opensled.core.registry import Registry

RULES = Registry(
    "rule",
    {
        "match": "verify_server.acceptance.match:Match",
        "ratio": "verify_server.acceptance.ratio:Ratio",
        "fly": "verify_server.acceptance.fly:Fly",
        "pad": "verify_server.acceptance.pad:Pad",
    },
)
