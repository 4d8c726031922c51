"""Acceptance rules by name: which prefix of a draft stands. One file each, pure Python over Scores."""

from opensled.process.registry import Registry

RULES = Registry(
    "rule",
    {
        "match": "verify_server.rules.match:Match",
        "ratio": "verify_server.rules.ratio:Ratio",
        "fly": "verify_server.rules.fly:Fly",
        "pad": "verify_server.rules.pad:Pad",
    },
)
