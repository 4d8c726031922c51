"""From the outputs of a draft's places to a tree: at each place the likeliest tokens behind those of the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from verify_server.drafting.heads.collapse import ROOT, Trie

CANDIDATES, WIDTH = 64, 4  # ids of each place that are looked at, and ways from it to the next
# What the tokens before, [W], add to the logits of ids [C]: [W, C].
Bias = Callable[[Sequence[int], NDArray[np.int64]], NDArray[np.float32]]


def likeliest_tree(
    logits: NDArray[np.float32], ids: NDArray[np.int64], previous: int, width: int, bias: Bias | None
) -> Trie:
    """`width` ways from each place to the next, of ids [places, C] and their `logits`; of one way: a chain.

    `previous`: the token before the first place. Scores are log-probabilities among the C ids.
    """
    trie, front, tokens = Trie([], [], []), [ROOT], [previous]
    for own, candidates in zip(logits, ids):
        values = own + bias(tokens, candidates) if bias else np.broadcast_to(own, (len(tokens), len(own)))
        scores = values - np.logaddexp.reduce(values, axis=1, keepdims=True)
        front = _grow(trie, front, scores, candidates, width)
        tokens = [trie.ids[node] for node in front]
    return trie


def _grow(
    trie: Trie, front: list[int], scores: NDArray[np.float32], ids: NDArray[np.int64], width: int
) -> list[int]:
    """Add the `width` likeliest children of each node of the `front`; the best of all of them are the next one."""
    best = np.argsort(-scores, axis=1)[:, :width]
    begin = len(trie.ids)
    for parent, row, places in zip(front, scores, best):
        reached = trie.scores[parent] if parent != ROOT else 0.0
        trie.ids.extend(ids[places].tolist())
        trie.parents.extend([parent] * len(places))
        trie.scores.extend((reached + np.minimum(row[places], 0)).tolist())
    return sorted(range(begin, len(trie.ids)), key=lambda node: -trie.scores[node])[:width]
