"""Rule `match`: a draft token stands when it equals the target's own sample. Lossless whatever the device does.

With shared noise (opensled/core/noise.py) the target's sample at a position is fixed before any draft arrives, so
only equality is checked. Gumbel coupling: arXiv 2408.07978; greedy verification is its T = 0 case.
"""

from opensled.core.messages import DraftBlock
from opensled.core.protocol import child_with, common_prefix
from opensled.core.trees import run_after
from verify_server.rules.base import (
    AcceptanceResult,
    AcceptanceRule,
    Decision,
    DraftCheck,
    SessionScores,
)


class Match(AcceptanceRule):
    """A chain takes one request; a tree takes one for each run of tokens on the path that stands."""

    trees = True

    def decide(self, check: DraftCheck, scores: SessionScores) -> Decision:
        """See `AcceptanceRule`."""
        if check.parents:
            return (yield from _decide_tree(check, scores))
        own = yield scores.request(range(len(check.draft) + 1), 0)
        num_accepted = common_prefix(check.ids, own)
        return AcceptanceResult(num_accepted, own[num_accepted])


def _decide_tree(check: DraftCheck, scores: SessionScores) -> Decision:
    """Follow the target's own samples through the tree, run by run."""
    block = DraftBlock(check.position, check.draft, check.parents)
    last = -1
    path: list[int] = []
    while True:
        run = run_after(check.parents, last)
        own = yield scores.request(range(last + 1, run.stop + 1), len(path))
        agreed = common_prefix([check.draft[index].id for index in run], own)
        path += run[:agreed]
        branch = child_with(block, path[-1] if path else -1, own[agreed])
        if branch is None:
            return AcceptanceResult(len(path), own[agreed], path=tuple(path))
        path.append(branch)
        last = branch
