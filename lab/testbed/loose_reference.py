"""What a loose rule writes, by plain forward passes: the reference of `fly` and `pad`, without any code of the product.

A loose rule's text depends on where draft blocks end, so a seed alone does not fix it. Two references hold it all the
same. *Replay*: each decision is recomputed from the text before it and the block that was verified (`decided`); this
holds whatever the link does. *Closed loop*: target and draft run token by token, with blocks of one length
(`closed_loop`); this holds where the server waits for every draft. docs/protocol.md and docs/loose-rules.md have the
rules.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from lab.testbed.reference import Reference, Sampling, masked


class Row(NamedTuple):
    """What the target says behind one token of a text."""

    logits: np.ndarray  # float64 [vocabulary]
    states: np.ndarray  # [size], those that the rule reads


class Mismatch(NamedTuple):
    """A draft token that is not the target's own."""

    place: int  # in the draft
    draft: Sequence[int]
    own: Sequence[int]  # the target's samples: own[i] in the place of draft[i]
    rows: Sequence[Row]  # rows[i] is behind what stands before draft[i]


class Law(Protocol):
    """When a mismatch stands."""

    layer: int

    def __call__(self, at: Mismatch) -> bool: ...


@dataclass(frozen=True)
class FlyLaw:
    """arXiv 2511.22972, equations 5 to 11; with `top3` the released code's entropy."""

    theta: float
    window: int
    top3: bool = False
    layer: int = 0

    def __call__(self, at: Mismatch) -> bool:
        first, stop = at.place + 1, at.place + 1 + self.window
        if stop > len(at.draft) or list(at.draft[first:stop]) != list(at.own[first:stop]):
            return False
        return self._entropy(at.rows[at.place].logits) >= self.theta

    def _entropy(self, logits: np.ndarray) -> float:
        probs = raw(logits)
        if self.top3:
            return -sum(p * math.log(p) for p in sorted(probs, reverse=True)[:3] if p > 0)
        return -sum(p * math.log(p) for p in probs if p > 0) / math.log(len(probs))


@dataclass(frozen=True)
class PadLaw:
    """arXiv 2511.00351, with the weights of a classifier file."""

    sigma: float
    floor: float
    layer: int
    weights: Mapping[str, np.ndarray]

    def __call__(self, at: Mismatch) -> bool:
        probs = raw(at.rows[at.place].logits)
        prob = float(probs[at.draft[at.place]])
        if prob < self.floor:
            return False
        entropy = -sum(p * math.log(p) for p in probs if p > 0)
        return self._chance(at.rows[at.place + 1].states, entropy, prob) <= self.sigma

    def _chance(self, states: np.ndarray, entropy: float, prob: float) -> float:
        weights = {name: np.asarray(value, np.float64) for name, value in self.weights.items()}
        norm = math.sqrt(float(np.mean(states**2)))
        facts = np.array([entropy, math.log(max(prob, 1e-9))])
        joined = np.concatenate([states / norm @ weights["state"], facts @ weights["facts"]])
        hidden = np.maximum(0.0, joined @ weights["inner"] + weights["inner_bias"])
        return float(1 / (1 + math.exp(-(hidden @ weights["outer"] + weights["outer_bias"][0]))))


class Decided(NamedTuple):
    """What a block comes to: the tokens that follow the text, and which of them are loose."""

    tokens: tuple[int, ...]
    loose: tuple[int, ...]  # indices into `tokens`


@dataclass(frozen=True)
class LooseReference:
    """A target, a law, and how the target draws."""

    target: Reference
    law: Law
    sampling: Sampling
    ends: frozenset[int]

    def decided(self, text: Sequence[int], draft: Sequence[int]) -> Decided:
        """The decision on a draft that follows `text`."""
        rows = self._rows([*text, *draft], len(draft) + 1)
        own = [self.sampling.draw(row.logits, len(text) + place) for place, row in enumerate(rows)]
        loose: list[int] = []
        for index, token in enumerate(draft):
            if token == own[index]:
                continue
            at = Mismatch(index, draft, own, rows)
            barred = token in self.ends or own[index] in self.ends
            if barred or not self._may_follow(rows[index], token) or not self.law(at):
                return Decided((*draft[:index], own[index]), tuple(loose))
            loose.append(index)
        return Decided((*draft, own[-1]), tuple(loose))

    def closed_loop(
        self,
        text: Sequence[int],
        drafted: Callable[[Sequence[int], int], Sequence[int]],
        length: int,
        left: int,
    ) -> Decided:
        """At most `left` tokens after `text`; `drafted(text, k)`: k draft tokens, of which there are `length` a block.

        The last token of an answer needs no draft.
        """
        tokens: list[int] = []
        loose: list[int] = []
        while len(tokens) < left and not (tokens and tokens[-1] in self.ends):
            before = [*text, *tokens]
            found = self.decided(before, drafted(before, min(length, left - len(tokens) - 1)))
            news = _until_an_end(found.tokens, self.ends)
            loose += [len(tokens) + index for index in found.loose if index < len(news)]
            tokens += news
        return Decided(tuple(tokens), tuple(loose))

    def _may_follow(self, row: Row, token: int) -> bool:
        """By top-k, top-p and min-p, which at temperature 0 are taken at 1."""
        at = replace(self.sampling, temperature=self.sampling.temperature or 1.0, key=bytes(16))
        return bool(masked(row.logits, at.temperature, at.top_k, at.top_p, at.min_p)[token] > -np.inf)

    def _rows(self, ids: Sequence[int], last: int) -> list[Row]:
        logits, states = self.target.logits_and_states(ids, last, self.law.layer)
        return [Row(*both) for both in zip(logits, states)]


def raw(logits: np.ndarray) -> np.ndarray:
    """The distribution before temperature."""
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def _until_an_end(tokens: Sequence[int], ends: frozenset[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in ends:
            return list(tokens[: index + 1])
    return list(tokens)
