"""`--stop`: the rule of blocks that a device is told to go by."""

from __future__ import annotations

from edge_client.config import DeviceConfig
from edge_client.lengths.adaptive import Adaptive
from edge_client.lengths.fixed import UNADVISED, DraftLengthPolicy, FixedLength
from edge_client.lengths.predicted import Predicted


def length_policy(config: DeviceConfig) -> DraftLengthPolicy:
    """A rule for all sequences of a device."""
    if config.stop in ("fixed", "confidence"):
        confidence = config.confidence if config.stop == "confidence" else 0.0
        length = config.draft_length or UNADVISED
        return FixedLength(length, confidence, may_grow=not config.draft_length, tree=config.draft_tree)
    law = Adaptive(config.draft_length, config.look_ahead, config.draft_tree, config.battery_floor)
    return law if config.stop == "adaptive" else Predicted(law, config.confidence)
