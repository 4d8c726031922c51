"""How long a device's draft model takes, by its profile.

A forward pass over n tokens takes as long as reading the weights once or as computing n of them, whichever is longer:
max(1 / decode rate, n / prefill rate). What a forward pass has to compute follows from the product's own cache
discipline (`ModelDrafter`): the first token of an answer comes with the reading of its prompt; after a verdict the
first pass of a block computes what the draft model has not seen yet, the recovered or bonus token with it. So a block
of k tokens takes k passes, and a token that the stop rule threw away one more.
"""

from __future__ import annotations

from hw_profiles.profiles import DraftSpeed


def forward_s(speed: DraftSpeed | None, tokens: int) -> float:
    """Seconds of one forward pass over `tokens` tokens of one sequence; None takes no time."""
    if speed is None:
        return 0.0
    return max(speed.draft_s(1), speed.prefill_s(tokens))
