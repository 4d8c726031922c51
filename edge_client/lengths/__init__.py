"""Draft-length policies by the name that `--stop` takes; a new one is one file and one line here."""

from edge_client.lengths.base import DraftLengthPolicy, LengthOptions
from opensled.core.errors import UsageError
from opensled.process.registry import Registry

LENGTH_POLICIES = Registry(
    "draft-length policy",
    {
        "hint": "edge_client.lengths.hint:HintLength",
        "fixed": "edge_client.lengths.fixed:FixedLength",
        "confidence": "edge_client.lengths.confidence:ConfidenceLength",
    },
)


def length_policy(name: str, options: LengthOptions) -> DraftLengthPolicy:
    """A new policy for all sequences of a device; `name`: a registered one, or "module:Class". Raises UsageError."""
    kind = LENGTH_POLICIES.get(name)
    if not (isinstance(kind, type) and issubclass(kind, DraftLengthPolicy)):
        raise UsageError(
            f"{name} is not a draft-length policy: it must be a subclass of edge_client.lengths.base:DraftLengthPolicy"
        )
    return kind.of(options)
