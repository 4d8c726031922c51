"""From what a draft head beside the target has computed to a draft.

Tokens are drawn with the noise of the sequence, at the positions that they would take, so that at every temperature a
head proposes what the target is likely to draw (opensled/core/noise.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opensled.core.messages import DraftBlock, DraftToken
from opensled.core.noise import gumbel
from verify_server.drafting.heads.beam import WIDTH, Bias, likeliest_tree
from verify_server.drafting.heads.collapse import ROOT, Trie, best_chain, best_trie, rank

NODES = 24  # of a tree, at most
NEVER = 1e-300  # chance of what is never drawn: what stands behind it still has a chance of its own
TOP_K, BEAM = 5, 48  # ids of each frame, and paths of all frames, that are looked at


class Drawing(NamedTuple):
    """How tokens are drawn behind a text."""

    key: bytes  # noise key
    length: int  # tokens of the text
    temperature: float


def place_trie(
    logits: NDArray[np.float32], ids: NDArray[np.int64], newest: int, is_tree: bool, bias: Bias | None
) -> Trie:
    """Of outputs that stand for places: `logits` [places, C] of the likeliest `ids`, noise included.

    `newest`: the last token of the text; as all ids here, one of the draft vocabulary.
    """
    return rank(likeliest_tree(logits, ids, newest, WIDTH if is_tree else 1, bias), NODES)


def frame_trie(frames: NDArray[np.float32], ids: NDArray[np.int64], drawing: Drawing) -> Trie:
    """Of frames with a blank: log-probabilities [frames, V + 1]; `ids` [V]: the target's.

    The noise belongs to the depth in the trie, the position that a token would take, and not to a frame.
    """
    trie = best_trie(frames, len(ids), TOP_K, BEAM, NODES)
    return rank(_score_draws(trie, ids, drawing), NODES) if drawing.temperature > 0 else trie


def block_of(trie: Trie, ids: NDArray[np.int64], length: int, is_tree: bool) -> DraftBlock:
    """A ranked trie behind a text of `length` tokens, with the chance of each token behind its parent."""
    if not is_tree:
        trie = best_chain(trie)
    chances = np.exp(_beyond_parents(trie)).tolist()
    tokens = [DraftToken(int(ids[id]), chance) for id, chance in zip(trie.ids, chances)]
    return DraftBlock(length, tuple(tokens), tuple(trie.parents) if is_tree else ())


def _score_draws(trie: Trie, ids: NDArray[np.int64], drawing: Drawing) -> Trie:
    """With the chance of each node to be drawn by the target. The noise makes it likely which of the children of a
    node that is; what all of them have together stays."""
    own, beyond, depth = np.array(trie.ids, int), _beyond_parents(trie), {ROOT: 0}
    scores = [0.0] * len(own)
    for parent, children in _families(trie).items():
        noise = gumbel(drawing.key, drawing.length + depth[parent], ids[own[children]])
        drawn = np.exp(_normalize(beyond[children] / drawing.temperature + noise))
        together = np.exp(beyond[children]).sum()
        for child, chance in zip(children, drawn):
            above = scores[parent] if parent != ROOT else 0.0
            depth[child] = depth[parent] + 1
            scores[child] = above + float(np.log(max(NEVER, min(1.0, chance * together))))
    return trie._replace(scores=scores)


def _beyond_parents(trie: Trie) -> NDArray[np.float64]:
    """Of each node the log-probability behind its parent."""
    reached = np.array([*trie.scores, 0.0])  # the last one is that of ROOT
    return reached[:-1] - reached[trie.parents]


def _families(trie: Trie) -> dict[int, list[int]]:
    """By parent its children; a family stands before those of its members."""
    found: dict[int, list[int]] = {}
    for node, parent in enumerate(trie.parents):
        found.setdefault(parent, []).append(node)
    return found


def _normalize(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values - np.logaddexp.reduce(values)
