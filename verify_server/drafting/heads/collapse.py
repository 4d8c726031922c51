"""From frames to text (CTC): repeats become one, then blanks are dropped; many paths of frames are one draft.

The candidates are a trie of collapsed paths, so a node stands at the place that its token would take in the text. Pure
numpy: it runs in a server's step, well below a millisecond for a draft.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = -1  # as a parent: the text that the draft follows


class Trie(NamedTuple):
    """Nodes, each behind its parent."""

    ids: list[int]  # of the draft vocabulary
    parents: list[int]  # index of a node, or ROOT
    scores: list[float]  # log-probability of all paths through a node, of those that the beam has found


def best_trie(
    log_probs: NDArray[np.float32], blank: int, top_k: int = 4, beam: int = 32, most: int = 16
) -> Trie:
    """Ranked: the `most` best nodes of what the likeliest `beam` paths stand for, each over `top_k` ids a frame.

    `log_probs` [frames, V + 1], of which the column `blank` is no token.
    """
    paths, scores = _likeliest_paths(log_probs, top_k, beam)
    return rank(_merge(paths, scores, blank), most)


def rank(trie: Trie, most: int) -> Trie:
    """The `most` best of its nodes, the better ones first. A child's score is at most its parent's: they are a trie."""
    order = np.argsort(-np.array(trie.scores), kind="stable")[:most].tolist()
    places = {ROOT: ROOT, **{node: place for place, node in enumerate(order)}}
    parents = [places[trie.parents[node]] for node in order]
    return Trie([trie.ids[node] for node in order], parents, [trie.scores[node] for node in order])


def best_chain(trie: Trie) -> Trie:
    """Of a ranked trie the nodes from the root along the best children."""
    ids, scores, last = [], [], ROOT
    for node, parent in enumerate(trie.parents):
        # Of a parent's children the best one stands first.
        if parent == last:
            ids.append(trie.ids[node])
            scores.append(trie.scores[node])
            last = node
    return Trie(ids, list(range(ROOT, len(ids) - 1)), scores)


def _likeliest_paths(
    log_probs: NDArray[np.float32], top_k: int, beam: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Paths [P, frames], and their log-probabilities [P]. Frames are independent, so the beam misses none."""
    ids, found = _top(log_probs, top_k)
    paths, scores = ids[0][:, None], found[0]
    for frame in range(1, len(ids)):
        sums = (scores[:, None] + found[frame]).ravel()
        kept = np.argpartition(-sums, beam - 1)[:beam] if len(sums) > beam else np.arange(len(sums))
        before, choice = np.divmod(kept, len(ids[frame]))
        paths, scores = np.column_stack([paths[before], ids[frame][choice]]), sums[kept]
    return paths, scores


def _top(log_probs: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and values [frames, count], the largest first: for few of many ids faster than a partition of them."""
    left, every = log_probs.copy(), np.arange(len(log_probs))
    ids = np.empty((len(log_probs), min(count, log_probs.shape[1])), np.int64)
    found = np.empty(ids.shape, np.float64)
    for column in range(ids.shape[1]):
        ids[:, column] = best = left.argmax(1)
        # Of what is left: where nothing is, an id that was taken comes again, and must not count twice.
        found[:, column] = left[every, best]
        left[every, best] = -np.inf
    return ids, found


def _merge(paths: NDArray[np.int64], scores: NDArray[np.float64], blank: int) -> Trie:
    """All nodes of the collapsed paths, parents first; an empty text has none.

    A path that weighs nothing beside the best one has none either, nor has one of NaN.
    """
    best = scores.max()
    nodes: dict[tuple[int, int], int] = {}  # (parent, id) -> node
    sums: list[float] = []
    for path, weight in zip(paths.tolist(), np.exp(scores - best).tolist()):
        if not weight > 0:
            continue
        node, previous = ROOT, blank
        for id in path:
            if id not in (blank, previous):
                node = nodes.setdefault((node, id), len(sums))
                if node == len(sums):
                    sums.append(0.0)
                sums[node] += weight
            previous = id
    found = np.log(sums) + best if sums else ()
    return Trie([id for _, id in nodes], [parent for parent, _ in nodes], list(map(float, found)))
