"""Penalties: what the tokens of an answer so far do to the logits of the next one.

A token that the answer has `count` >= 1 times loses `frequency_penalty * count + presence_penalty` (OpenAI's formula,
https://platform.openai.com/docs/api-reference/chat/create). Before that its logit is divided by `repetition_penalty`
if it is positive, else multiplied (CTRL, arXiv 1909.05858). The prompt does not count, for none of the three. Device
and server count by the same rules: under verification, a draft's tokens count along the path to each of its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from opensled.core.errors import Unsupported
from opensled.core.messages import PENALTIES, ModelInfo, SamplingParams

FIRST_ROOM = 64  # distinct tokens there is room for at first; then always twice as many
# What the capability stands for
NAMES = ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


PLAIN = SamplingParams()


class TokenCounts:
    """How often an answer has each of its tokens. It grows with the answer: a new token costs no pass over it."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._places: dict[int, int] = {}  # of each token, index into both arrays
        self._ids = np.zeros(FIRST_ROOM, np.int64)
        self._counts = np.zeros(FIRST_ROOM, np.int64)
        self.add(tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """The answer grew by `tokens`."""
        for token in tokens:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._ids):
                self._grow()
            self._ids[place] = token
            self._counts[place] += 1

    def _grow(self) -> None:
        self._ids = np.append(self._ids, np.zeros_like(self._ids))
        self._counts = np.append(self._counts, np.zeros_like(self._counts))

    def after(self, path: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Distinct ids and their counts, both int64 [n], of the answer and the draft tokens `path` behind it.

        Without a path the arrays are valid until the answer grows; they are not to be written to.
        """
        known = len(self._places)
        ids, counts = self._ids[:known], self._counts[:known]
        if not path:
            return ids, counts
        fresh, counts = Counter(path), counts.copy()
        for token in fresh.keys() & self._places.keys():
            counts[self._places[token]] += fresh.pop(token)
        more = np.array([*fresh.items()], np.int64).reshape(-1, 2)
        return np.concatenate([ids, more[:, 0]]), np.concatenate([counts, more[:, 1]])

    def along(self, draft: Sequence[int], parents: Sequence[int] = ()) -> list[Emitted]:
        """The tokens emitted before each row of a draft: row 0 follows the answer, row i + 1 draft token i.

        `parents`: of a tree (`DraftBlock`); () = a chain.
        """
        paths: list[tuple[int, ...]] = [()]
        for index, token in enumerate(draft):
            parent = parents[index] if parents else index - 1
            paths.append((*paths[parent + 1], token))
        return [Emitted(self, path) for path in paths]


class Emitted(NamedTuple):
    """The tokens before one row of logits: those of the answer, then draft tokens."""

    counts: TokenCounts
    path: tuple[int, ...] = ()

    def count_tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """See `TokenCounts.after`."""
        return self.counts.after(self.path)


def deductions(counts: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The frequency and presence penalties for the logits of tokens with these counts >= 1; float64 [n]."""
    return counts * params.frequency_penalty + params.presence_penalty


def penalize(logits: np.ndarray, params: SamplingParams, emitted: Emitted) -> None:
    """Change float logits [vocabulary] in place; ids beyond them are left out."""
    ids, counts = emitted.count_tokens()
    known = ids < len(logits)
    _penalize_at(logits, ids[known], counts[known], params)


def penalize_candidates(
    ids: np.ndarray, scores: np.ndarray, params: SamplingParams, emitted: Emitted
) -> None:
    """The same for the float `scores` [n] of single `ids` [n], none of which is there twice."""
    emitted_ids, counts = emitted.count_tokens()
    _, places, found = np.intersect1d(ids, emitted_ids, assume_unique=True, return_indices=True)
    _penalize_at(scores, places, counts[found], params)


def _penalize_at(scores: np.ndarray, places: np.ndarray, counts: np.ndarray, params: SamplingParams) -> None:
    """Change `scores` in place at `places`, whose tokens an answer has `counts` times."""
    values, factor = scores[places], params.repetition_penalty
    scores[places] = np.where(values > 0, values / factor, values * factor) - deductions(counts, params)


def require_served(params: SamplingParams, info: ModelInfo) -> None:
    """Raises Unsupported, naming the field, for what the server that `info` describes would ignore."""
    if PENALTIES in info.capabilities:
        return
    for name in NAMES:
        if getattr(params, name) != getattr(PLAIN, name):
            raise Unsupported(f"the server of {info.model_id} does not serve {name}: leave it out", name)
