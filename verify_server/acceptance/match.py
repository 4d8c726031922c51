"""Rule `match`: a draft token stands when it equals the target's own sample. Lossless whatever the device does.

With shared noise (opensled/noise.py) the target's sample at a position is fixed before any draft arrives, so
only equality is checked. Gumbel coupling: arXiv 2408.07978; greedy verification is its T = 0 case.
"""

from __future__ import annotations

from collections.abc import Sequence

from opensled.messages import DraftBlock
from opensled.protocol import child_with, common_prefix
from verify_server.acceptance.base import DraftCheck
from verify_server.engine.base import Scores
from verify_server.trees import run_after


class Match:
    """`AcceptancePolicy`."""

    trusts_device = False

    def accept(self, question: DraftCheck, scores: Scores, rows: Sequence[int]) -> tuple[int, int]:
        own = scores.sample(rows, question.params, question.key, question.position, question.masks)
        num_accepted = common_prefix(question.ids, own)
        return num_accepted, own[num_accepted]

    def accept_tree(
        self, question: DraftCheck, scores: Scores, rows: Sequence[int]
    ) -> tuple[tuple[int, ...], int]:
        """See `TreePolicy`: the target's own samples are followed through the tree, run by run."""
        block = DraftBlock(question.position, question.draft, question.parents)
        last = -1
        path: list[int] = []
        while True:
            run = run_after(question.parents, last)
            own = _own(question, scores, rows, range(last + 1, run.stop + 1), len(path))
            agreed = common_prefix([question.draft[index].id for index in run], own)
            path += run[:agreed]
            branch = child_with(block, path[-1] if path else -1, own[agreed])
            if branch is None:
                return tuple(path), own[agreed]
            path.append(branch)
            last = branch


def _own(question: DraftCheck, scores: Scores, rows: Sequence[int], places: range, depth: int) -> list[int]:
    """The target's own tokens at the rows of these `places`, the first of which follows `depth` draft tokens."""
    masks = None if question.masks is None else question.masks[places.start : places.stop]
    wanted = rows[places.start : places.stop]
    return scores.sample(wanted, question.params, question.key, question.position + depth, masks)
