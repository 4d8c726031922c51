"""Draft heads: small networks that read the target's hidden states and draft several tokens."""

from opensled.process.registry import Registry

# By `HeadShape.kind`: a new one is one file and one line here. An entry is called with a `HeadShape` and returns a
# `DraftHead`.
HEADS = Registry(
    "draft head",
    {
        "specformer": "verify_server.drafting.heads.specformer:SpecFormerHead",
        "ctc": "verify_server.drafting.heads.ctc:CtcHead",
    },
)
