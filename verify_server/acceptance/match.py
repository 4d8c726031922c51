"""Rule `match`: a draft token stands when it equals the target's own sample. Lossless whatever the device does.

With shared noise (opensled/noise.py) the target's sample at a position is fixed before any draft arrives, so
only equality is checked. Gumbel coupling: arXiv 2408.07978; greedy verification is its T = 0 case.
"""

from __future__ import annotations

from collections.abc import Sequence

from opensled.protocol import common_prefix
from verify_server.acceptance.base import Question
from verify_server.engine.base import Scores


class Match:
    """`AcceptancePolicy`."""

    trusts_device = False

    def accept(self, question: Question, scores: Scores, rows: Sequence[int]) -> tuple[int, int]:
        own = scores.sample(rows, question.params, question.key, question.position, question.masks)
        num_accepted = common_prefix(question.ids, own)
        return num_accepted, own[num_accepted]
